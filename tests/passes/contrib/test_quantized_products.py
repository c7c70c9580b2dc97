from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines quantized_decomposed
import torch.nn.functional as F

import coreai_onnx
from coreai_onnx.passes.cleanup.remove_unused import remove_dead_code
from coreai_onnx.passes.contrib.quantized_products import contrib_matmul_nbits
from tests.passes.quantized_products import COLUMNS, INT4, RNG, ROWS, UINT4, linear
from tests.passes.rewriting import run, run_passes, same_bytes
from tests.support.tolerances import assert_close


@pytest.mark.parametrize(
    ("kind", "block", "ops", "more", "inputs"),
    [
        (INT4, 32, ROWS, {}, 4),
        (INT4, 32, ROWS, {"zeros": False}, 3),
        (UINT4, 16, COLUMNS, {}, 4),
        (UINT4, 16, COLUMNS, {"zeros": False}, 4),  # onnx's zero is 0, the op's is 8
        (np.int8, 32, ROWS, {}, 4),
        (np.uint8, 32, COLUMNS, {"limits": (100, 116)}, 4),
        (np.int8, 32, ROWS, {"bias": (48,)}, 6),
        (INT4, 64, ("dequantized", "Gemm"), {"transB": 1, "bias": (48,), "zeros": False}, 6),
        (INT4, 32, ("dequantized", "Gemm"), {"size": (48, 96)}, 4),
        (INT4, 32, ROWS, {"size": (48, 80)}, 4),  # the last block is short
        (INT4, 512, ROWS, {"size": (16, 512)}, 4),  # split into what onnxruntime has
        (INT4, 96, COLUMNS, {"size": (16, 96)}, 4),
    ],
)
def test_products_are_onnxruntimes(
    kind: type, block: int, ops: Sequence[str], more: dict[str, Any], inputs: int
) -> None:
    model = linear(kind, block, ops, **more)
    before = ir.from_proto(ir.to_proto(model))
    report = run_passes(model, [contrib_matmul_nbits, remove_dead_code])
    assert report.counts["contrib_matmul_nbits"] == 1
    (node,) = model.graph
    assert (node.op_type, len(node.inputs)) == ("MatMulNBits", inputs)
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    assert attributes["bits"] == 4
    assert "accuracy_level" not in attributes  # the other factor stays as exact as it is
    packed = model.graph.initializers[node.inputs[1].name]
    blocks = -(-attributes["K"] // attributes["block_size"])
    assert packed.dtype == ir.DataType.UINT8
    assert packed.shape == (attributes["N"], blocks, attributes["block_size"] // 2)
    shape = (5, attributes["K"]) if ops[-1] == "Gemm" else (2, 3, attributes["K"])
    feeds = {"x": RNG.standard_normal(shape).astype(np.float32)}
    assert_close(run(model, feeds), run(before, feeds))
    again = ir.from_proto(ir.to_proto(model))
    assert run_passes(again, [contrib_matmul_nbits]).total == 0
    assert same_bytes(again, model)


@pytest.mark.parametrize(
    ("kind", "block", "ops", "more", "reason"),
    [
        (np.int8, 32, ROWS, {"limits": (-8, 9)}, "the weight needs more than 4 bits"),
        (INT4, 8, ROWS, {}, "onnxruntime does not support this block size"),
        (INT4, 96, ROWS, {"size": (48, 144)}, "onnxruntime does not support this block size"),
        (INT4, 16, ROWS, {"size": (16, 16), "axis": 0}, "blocks must lie along the input features"),
        (INT4, 32, ("dequantized", "Gemm"), {"alpha": 0.5}, "the product is scaled or transposed"),
        (INT4, 32, ("dequantized", "Gemm"), {"bias": (1, 48)}, "the bias must be a row with one value per output"),
    ],
)  # fmt: skip
def test_others_stay(
    kind: type, block: int, ops: Sequence[str], more: dict[str, Any], reason: str
) -> None:
    if "axis" in more:
        more = {**more, "size": (16, 16)}
    model = linear(kind, block, ops, **more)
    before = ir.from_proto(ir.to_proto(model))
    report = run_passes(model, [contrib_matmul_nbits])
    assert report.total == 0
    assert same_bytes(model, before)
    assert [m.miss.reason for m in report.near_misses] == [reason]


def test_a_row_that_something_else_shares_is_added_after() -> None:
    model = linear(INT4, 32, ROWS, bias=(1, 48))
    feeds = {"x": RNG.standard_normal((2, 3, 64)).astype(np.float32)}
    expected = run(model, feeds)
    run_passes(model, [contrib_matmul_nbits, remove_dead_code])
    assert [node.op_type for node in model.graph] == ["MatMulNBits", "Add"]
    assert_close(run(model, feeds), expected)


class Groups(torch.nn.Module):
    """A linear layer of 96 outputs and 128 inputs, quantized in groups of 32 inputs."""

    weight: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        steps = torch.randint(-8, 8, (96, 128), dtype=torch.int8)
        self.register_buffer("weight", steps)
        self.register_buffer("scales", torch.rand(96, 4) / 32 + 0.01)
        self.register_buffer("zeros", torch.randint(-8, 8, (96, 4), dtype=torch.int32))
        self.bias = torch.nn.Parameter(torch.randn(96))

    def matrix(self) -> torch.Tensor:
        result: torch.Tensor = torch.ops.quantized_decomposed.dequantize_per_channel_group(
            self.weight, self.scales, self.zeros, -8, 7, torch.int8, 32, torch.float32
        )
        return result

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.matrix(), self.bias)


class ByHand(Groups):
    """Written as models are that bring a quantization of their own."""

    def matrix(self) -> torch.Tensor:
        groups = self.weight.view(96, 4, 32).to(torch.float32) - self.zeros[..., None]
        return (groups * self.scales[..., None]).view(96, 128)


class Packed(Groups):
    """Two steps a byte, without their sign."""

    def __init__(self) -> None:
        super().__init__()
        steps = (self.weight + 8).to(torch.uint8)
        self.weight = steps[:, ::2] | (steps[:, 1::2] << 4)

    def matrix(self) -> torch.Tensor:
        steps = torch.stack([self.weight & 15, self.weight >> 4], -1).view(96, 4, 32)
        groups = steps.to(torch.float32) - 8.0 - self.zeros[..., None]
        return (groups * self.scales[..., None]).view(96, 128)


class Turned(Groups):
    """Eight steps in a number of 32 bits, inputs first, as GPTQ keeps them."""

    def __init__(self) -> None:
        super().__init__()
        steps = (self.weight.T.long() + 8).view(16, 8, 96)
        words = (steps << 4 * torch.arange(8)[None, :, None]).sum(1)
        self.weight = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)

    def matrix(self) -> torch.Tensor:
        shifts = 4 * torch.arange(8, dtype=torch.int32)[None, :, None]
        steps = (self.weight[:, None] >> shifts) & 15
        zeros, scales = (self.zeros + 8).T[:, None], self.scales.T[:, None]
        return (scales * (steps.reshape(4, 32, 96) - zeros)).reshape(128, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.matrix() + self.bias


@pytest.mark.parametrize("kind", [Groups, ByHand, Packed, Turned])
def test_from_torch_to_onnxruntime(kind: type[Groups], tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = kind().eval()
    rows = torch.export.Dim("rows")
    x = torch.randn(2, 5, 128)
    program = coreai_onnx.convert(module, (x,), dynamic_shapes=({1: rows},), optimize=False)
    program.optimize(target="contrib")
    assert [node.op_type for node in program.model.graph] == ["MatMulNBits"]
    program.save(tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").stat().st_size < 12_000  # 49152 in float32
    for length in (5, 1, 40):
        x = torch.randn(2, length, 128)
        with torch.no_grad():
            assert_close(list(program.run(x, kernels=False)), [module(x)])
