"""Weights of convolutions in few bits: groups of whole kernels, functions, and what stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx.program import OnnxProgram
from coreai_onnx.quantization.weights.convolutions import convolution_weights
from coreai_onnx.quantization.weights.products import Products
from coreai_onnx.quantization.weights.scheme import Scheme
from tests.support.tolerances import assert_close

X = torch.randn(2, 8, 9, 9, generator=torch.Generator().manual_seed(0))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(16, 16, 3, groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(8, 16, 3)
        self.blocks = torch.nn.Sequential(Block(), Block())
        self.up = torch.nn.ConvTranspose2d(16, 8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.blocks(self.first(x)))


def net(*, functions: bool = False, **options: Any) -> tuple[OnnxProgram, np.ndarray]:
    """Return a program, and its output before a quantization."""
    torch.manual_seed(0)
    modules = [Block] if functions else None
    program = coreai_onnx.convert(Net().eval(), (X,), externalize_modules=modules)
    before = program.run(X, kernels=False)[0]
    return program.quantize(convolutions=True, minimum_size=0, **options), before


def error(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("functions", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("bits", "limit"), [(8, 0.01), (4, 0.1), (3, 0.25), (2, 0.6)])
def test_results_are_near(bits: int, limit: float, symmetric: bool, functions: bool) -> None:
    program, before = net(functions=functions, bits=bits, symmetric=symmetric)
    assert 0 < error(program.run(X, kernels=False)[0], before) < limit
    report = program.quantization_report
    assert report is not None
    assert len(report.layers) == 4
    assert report.bytes_after < report.bytes_before * (bits + 3) / 32
    weights = [v.const_value for v in program.model.graph.initializers.values()]
    assert max(w.size for w in weights if w.dtype == ir.DataType.FLOAT) <= 16


@pytest.mark.parametrize("target", ["onnxruntime", "kernels", "contrib", "portable"])
def test_targets(target: Any) -> None:
    program, _ = net(bits=4)
    before = program.run(X, kernels=False)[0]
    program.optimize(target=target)
    assert_close(program.run(X)[0], before)


def test_palettes() -> None:
    program, before = net(bits=4, method="palette")
    assert error(program.run(X, kernels=False)[0], before) < 0.1
    assert "lut_to_dense.bits4_scale" in [node.op_type for node in program.model.graph]


def test_groups_are_whole_kernels_near_the_size() -> None:
    torch.manual_seed(0)
    model = coreai_onnx.convert(torch.nn.Conv2d(64, 8, 3), (torch.randn(1, 64, 5, 5),)).model
    (weight,) = convolution_weights(Products(model))
    assert weight.shape == (8, 576)
    found = {size: weight.fitted(Scheme(4, size)) for size in (0, 8, 32, 64, 128)}
    sizes = {asked: one.group_size for asked, one in found.items() if isinstance(one, Scheme)}
    assert sizes == {0: 576, 8: 18, 32: 36, 64: 72, 128: 144}
    gptq = weight.fitted(Scheme(8, 32, "gptq"))
    assert isinstance(gptq, Scheme)
    assert (gptq.method, gptq.group_size) == ("hqq", 36)


def test_rows_that_do_not_fill_bytes_stay() -> None:
    conv = torch.nn.Conv2d(3, 64, 7).eval()
    program = coreai_onnx.convert(
        torch.nn.Sequential(conv, torch.nn.Conv2d(64, 8, 1)), (torch.randn(1, 3, 9, 9),)
    )
    program.quantize(4, convolutions=True, minimum_size=0)
    report = program.quantization_report
    assert report is not None
    (kept,) = report.kept
    assert kept.shape == (64, 147)
    assert "no number of its kernels fills whole bytes" in kept.reason


def test_without_the_option_they_stay() -> None:
    torch.manual_seed(0)
    program = coreai_onnx.convert(Net().eval(), (X,))
    with pytest.raises(coreai_onnx.errors.QuantizationError, match="there is nothing to quantize"):
        program.quantize(8)


def test_a_weight_with_another_reader_stays() -> None:
    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv1d(16, 16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x) + self.conv.weight.sum()

    model = coreai_onnx.convert(Shared().eval(), (torch.randn(1, 16, 9),), optimize=False).model
    assert convolution_weights(Products(model)) == []


def test_stored_in_16_bits() -> None:
    torch.manual_seed(0)
    program = coreai_onnx.convert(Net().eval().to(torch.float16), (X.half(),), optimize=False)
    before = program.run(X.half(), kernels=False)[0]
    program.quantize(8, convolutions=True, minimum_size=0)
    after = program.run(X.half(), kernels=False)[0]
    assert after.dtype == np.float16
    assert error(after.astype(np.float32), before.astype(np.float32)) < 0.02
