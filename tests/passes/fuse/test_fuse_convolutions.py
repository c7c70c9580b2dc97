"""Convolutions become gather_mm or convolution, in body and kernel as torch computes them."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import coreai_onnx
from coreai_onnx.passes import Target
from coreai_onnx.passes.fuse.fuse_convolutions import fuse_float32_convolutions, fuse_residuals
from tests.lower.checking import op_types, open_model, run_session
from tests.passes.rewriting import leaves
from tests.support.tolerances import assert_close

Size = tuple[int, ...]


def conv(rank: int, channels: int, filters: int, **settings: Any) -> torch.nn.Module:
    """Return a convolution whose sums do not cancel: a bias is added after a rounding."""
    kinds = [torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d]
    module = kinds[rank - 1](channels, filters, **settings)
    for parameter in module.parameters():
        parameter.data.abs_()
    return module.bfloat16().eval()


FUSED: dict[str, tuple[torch.nn.Module, Size]] = {
    "patches": (conv(2, 3, 8, kernel_size=4, stride=4), (2, 3, 8, 12)),
    "without_bias": (conv(2, 3, 8, kernel_size=4, stride=4, bias=False), (2, 3, 8, 12)),
    "unequal_patches": (conv(2, 3, 8, kernel_size=(2, 3), stride=(2, 3)), (1, 3, 8, 12)),
    "patches_of_a_video": (conv(3, 3, 8, kernel_size=2, stride=2), (1, 3, 4, 6, 8)),
    "patches_of_a_sequence": (conv(1, 3, 8, kernel_size=4, stride=4), (2, 3, 12)),
    "points": (conv(2, 3, 8, kernel_size=1), (2, 3, 5, 7)),
    "sequence": (conv(1, 16, 8, kernel_size=3, padding=1), (2, 16, 9)),
    "strides": (conv(1, 16, 8, kernel_size=3, stride=2, padding=1), (2, 16, 10)),
    "without_padding": (conv(1, 20, 8, kernel_size=5, stride=3), (1, 20, 17)),
    "one_step": (conv(1, 16, 8, kernel_size=3), (1, 16, 3)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", FUSED)
def test_body_and_kernel_compute_what_torch_does(
    name: str, dtype: torch.dtype, kernels: Path
) -> None:
    torch.manual_seed(0)
    module, shape = FUSED[name]
    module, x = deepcopy(module).to(dtype), torch.rand(shape).to(dtype)
    wide = dtype == torch.float32
    model = coreai_onnx.convert(module, (x,)).optimize(target="kernels", deterministic=wide).model
    types = op_types(model)
    wanted = "gather_mm.transposed"
    if wide and len(shape) < 5:
        wanted = "convolution.no_bias" if name == "without_bias" else "convolution"
    assert wanted in types
    assert not {"Conv", "Cast", *([] if wide else ["Add"])} & {*types}
    with torch.no_grad():
        expected = [module(x)]
    assert_close(run_session(open_model(model), [x]), expected)
    model.functions.clear()
    assert_close(run_session(open_model(model, library=kernels), [x]), expected)


@pytest.mark.parametrize("name", ["patches", "sequence"])
def test_the_batch_may_vary(name: str) -> None:
    module, shape = FUSED[name]
    x, more = torch.rand(2, *shape[1:]).bfloat16(), torch.rand(3, *shape[1:]).bfloat16()
    batch = torch.export.Dim("batch")
    program = coreai_onnx.convert(module, (x,), dynamic_shapes=({0: batch},))
    program.optimize(target="kernels")
    assert "Conv" not in op_types(program.model)
    with torch.no_grad():
        assert_close(list(program.run(more, kernels=False)), [module(more)])


OTHERS: dict[str, tuple[torch.nn.Module, Size, str]] = {
    "overlapping_patches": (
        conv(2, 16, 8, kernel_size=3, padding=1),
        (1, 16, 6, 6),
        "the windows are neither patches nor those of a sequence with many channels",
    ),
    "a_rest": (
        conv(2, 3, 8, kernel_size=4, stride=4),
        (1, 3, 9, 8),
        "the windows are neither patches nor those of a sequence with many channels",
    ),
    "few_channels": (
        conv(1, 2, 8, kernel_size=3, padding=1),
        (1, 2, 9),
        "the windows are neither patches nor those of a sequence with many channels",
    ),
    "groups": (
        conv(1, 16, 16, kernel_size=3, groups=4),
        (1, 16, 9),
        "the sizes are not known, or the convolution is grouped or dilated",
    ),
    "dilation": (
        conv(1, 16, 8, kernel_size=3, dilation=2),
        (1, 16, 9),
        "the sizes are not known, or the convolution is grouped or dilated",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_of_float32_are_convolutions(name: str, kernels: Path) -> None:
    module, shape, _ = OTHERS[name]
    module, x = deepcopy(module).float(), torch.rand(shape)
    program = coreai_onnx.convert(module, (x,)).optimize(target="kernels", deterministic=True)
    assert "convolution" in op_types(program.model)
    with torch.no_grad():
        expected = [module(x)]
    assert_close(run_session(open_model(program.model), [x]), expected)
    assert_close(run_session(open_model(program.model, library=kernels), [x]), expected)


def test_a_convolution_by_a_computed_weight() -> None:
    class Product(torch.nn.Module):
        def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.conv1d(x, weight * 2, stride=2)

    x, weight = torch.rand(2, 3, 9), torch.rand(4, 3, 2)
    program = coreai_onnx.convert(Product(), (x, weight))
    program.optimize(target="kernels", deterministic=True)
    assert "convolution.no_bias" in op_types(program.model)
    assert_close(list(program.run(x, weight)), [Product()(x, weight)])


def test_padding_by_size_stays() -> None:
    leaves(
        "main (float[n, 2, 5, 5] x, float[3, 2, 3, 3] w) => (float[n, 3, 5, 5] y) "
        '{ y = Conv <auto_pad = "SAME_UPPER"> (x, w) }',
        fuse_float32_convolutions,
        "the padding follows from the size",
    )


class Block(torch.nn.Module):
    """A block of ResNet, whose shortcut is a convolution, then one whose shortcut is the input."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(4, 20, 3, padding=1)
        self.shortcut = torch.nn.Conv2d(4, 20, 1, bias=False)
        self.second = torch.nn.Conv2d(20, 20, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (self.shortcut(x) + self.first(x).relu()).relu()
        return (self.second(x) + x).relu()


def test_residuals_and_relu_are_parts_of_convolutions(kernels: Path) -> None:
    torch.manual_seed(0)
    module, x = Block().eval(), torch.randn(2, 4, 5, 6)
    batch = torch.export.Dim("batch")
    program = coreai_onnx.convert(module, (x,), dynamic_shapes=({0: batch},))
    program.optimize(target="kernels", deterministic=True)
    assert sorted(op_types(program.model)) == [
        "convolution.no_bias_residual_relu",
        "convolution.no_bias_residual_relu",
        "convolution.relu",
    ]
    with torch.no_grad():
        expected = [module(x)]
    assert_close(run_session(open_model(program.model), [x]), expected)
    program.model.functions.clear()
    assert_close(run_session(open_model(program.model, library=kernels), [x]), expected)


CONVOLUTION = "c = ai.coreai.convolution <stride = [1, 1], padding = [0, 0, 0, 0]> (x, w, b)"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("y = Add (c, one)", "the terms are not known to have the same shape"),
        ("y = Add (c, other) d = Neg (c)", "something else reads the convolution"),
    ],
)
def test_other_residuals_stay(text: str, reason: str) -> None:
    leaves(
        "main (float[n, 2, 5, 5] x, float[3, 2, 1, 1] w, float[3] b, float[1] one, "
        "float[n, 3, 5, 5] other) => (float[n, 3, 5, 5] y) "
        f"{{ float[n, 3, 5, 5] {CONVOLUTION} {text} }}",
        fuse_residuals,
        reason,
    )


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    module, shape, reason = OTHERS[name]
    program = coreai_onnx.convert(module, (torch.rand(shape).bfloat16(),))
    report = program.optimize(target="kernels").pass_report
    assert "Conv" in op_types(program.model)
    misses = {
        m.miss.reason for m in report.near_misses if m.pass_name == "fuse_narrow_convolutions"
    }
    assert misses == {reason}


def test_a_weight_with_another_reader_stays() -> None:
    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = FUSED["patches"][0]

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.conv(x), self.conv.weight.abs()

    program = coreai_onnx.convert(Shared(), (torch.rand(1, 3, 8, 8).bfloat16(),))
    program.optimize(target="kernels")
    assert "Conv" in op_types(program.model)


def test_only_the_kernels_target_has_it() -> None:
    module, shape = FUSED["patches"]
    for target in get_args(Target):
        program = coreai_onnx.convert(module, (torch.rand(shape).bfloat16(),))
        program.optimize(target=target)
        assert ("Conv" not in op_types(program.model)) == (target == "kernels")
