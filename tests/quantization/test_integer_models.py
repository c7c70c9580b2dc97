"""Activations of 8 bits: the integer kernels of onnxruntime run, near the results in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import coreai_onnx
from coreai_onnx.errors import QuantizationError
from coreai_onnx.program import OnnxProgram


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv1d(2, 16, 5, padding=2)
        self.second = torch.nn.Conv1d(16, 8, 3)
        self.up, self.down = torch.nn.Linear(8, 24), torch.nn.Linear(24, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = self.second(x).transpose(1, 2)
        return self.down(torch.nn.functional.gelu(self.up(x)))


def inputs(count: int, seed: int) -> list[tuple[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(3, 2, 40)).astype(np.float32),) for _ in range(count)]


def network(*, optimize: bool = True) -> OnnxProgram:
    torch.manual_seed(0)
    return coreai_onnx.convert(Network().eval(), (torch.randn(3, 2, 40),), optimize=optimize)


def fused(program: OnnxProgram, folder: Path) -> list[str]:
    """Return the op types of the graph that onnxruntime runs."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(program.to_proto().SerializeToString(), options)
    return [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]


@pytest.mark.parametrize("optimize", [False, True])
def test_integer_kernels_run(optimize: bool, tmp_path: Path) -> None:
    program, (x,) = network(optimize=optimize), inputs(1, 99)[0:1][0]
    exact = program.run(x)[0]
    program.quantize(8, activations=True, calibration=inputs(8, 0))
    near = program.run(x)[0]
    error = 10 * np.log10(np.square(exact).sum() / np.square(exact - near).sum())
    assert near.dtype == exact.dtype
    assert error > 25
    ops = fused(program, tmp_path)
    assert ops.count("QLinearConv") == 2
    assert sum(op in ("MatMulIntegerToFloat", "QLinearMatMul", "QGemm") for op in ops) == 2
    report = program.quantization_report
    assert report is not None
    assert [layer.path for layer in report.layers] == ["first", "second", "up", "down"]
    assert min(layer.sqnr for layer in report.layers) > 35
    assert report.bytes_after < report.bytes_before / 2


def test_layers_may_be_left_out() -> None:
    program = network()
    program.quantize(activations=True, calibration=inputs(2, 0), skip=["first"], rules={"up": None})
    report = program.quantization_report
    assert report is not None
    assert [layer.path for layer in report.layers] == ["second", "down"]
    assert [kept.path for kept in report.kept] == ["first", "up"]


def test_errors_leave_the_program_unchanged() -> None:
    program = network()
    before = program.to_proto().SerializeToString(deterministic=True)
    wrong = [(np.ones((3, 3, 40), np.float32),)]
    for options, message in (
        ({}, "activations=True needs calibration data"),
        ({"calibration": []}, "there is no calibration data"),
        ({"calibration": wrong}, "calibration call 1"),
        ({"calibration": inputs(1, 0), "skip": ["*"]}, "there is nothing to quantize"),
    ):
        with pytest.raises(QuantizationError, match=message):
            program.quantize(8, activations=True, **options)
        assert program.to_proto().SerializeToString(deterministic=True) == before
