"""Activations of 8 bits: the integer kernels of onnxruntime run, near the results in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
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


def stock(program: OnnxProgram, x: torch.Tensor) -> np.ndarray:
    """The output of a session with onnxruntime's default options."""
    session = onnxruntime.InferenceSession(program.to_proto().SerializeToString())
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


def rounded(module: torch.nn.Module, x: torch.Tensor, **options: object) -> OnnxProgram:
    program = coreai_onnx.convert(module.eval(), (x,))
    calls = [(x * (1 - 0.1 * k),) for k in range(4)]
    return program.quantize(8, activations=True, calibration=calls, **options)


def worst(program: OnnxProgram, module: torch.nn.Module, x: torch.Tensor) -> float:
    """The largest change, beside the largest value."""
    exact = module(x).detach().numpy()
    return float(np.abs(stock(program, x) - exact).max() / np.abs(exact).max())


LAYERS = [
    (torch.nn.Linear(32, 16), (4, 32)),
    (torch.nn.Linear(32, 16), (2, 3, 32)),
    (torch.nn.Sequential(torch.nn.Conv1d(4, 8, 3), torch.nn.ReLU()), (2, 4, 20)),
]


@pytest.mark.parametrize(("module", "shape"), LAYERS)
@pytest.mark.parametrize("size", [1e-6, 1e-12, 1e-38])
def test_a_bias_that_is_large_beside_the_products(
    module: torch.nn.Module, shape: tuple[int, ...], size: float
) -> None:
    """The scale of the weight grows, so that the bias fits into int32."""
    with torch.no_grad():
        bias = next(value for name, value in module.named_parameters() if "bias" in name)
        bias.copy_(torch.linspace(0.1, 1, len(bias)))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * size
    assert worst(rounded(module, x), module, x) < 0.005


def test_a_matrix_is_multiplied_by_integers(tmp_path: Path) -> None:
    """In a Gemm, onnxruntime finds integers only if the weight has zero points."""
    program = rounded(torch.nn.Linear(64, 32), torch.randn(5, 64))
    assert fused(program, tmp_path) == ["QuantizeLinear", "QGemm"]


class Skipped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Conv1d(4, 8, 3), torch.nn.Conv1d(8, 8, 3)
        self.c = torch.nn.Conv1d(8, 4, 3)
        with torch.no_grad():  # one scale for all channels would lose the small ones
            self.b.weight *= torch.logspace(-4, 0, 8)[:, None, None]
            self.b.bias.zero_()
            self.c.weight *= torch.logspace(4, 0, 8)[None, :, None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(torch.relu(self.a(x))))


def test_a_layer_that_is_left_out_stays_in_float32(tmp_path: Path) -> None:
    torch.manual_seed(0)
    program = rounded(Skipped(), torch.randn(2, 4, 40), skip=["b"])
    ops = fused(program, tmp_path)
    assert ops.count("QLinearConv") == 1
    assert "FusedConv" in ops


def test_inputs_of_16_bits() -> None:
    torch.manual_seed(0)
    module, x = Network(), torch.randn(3, 2, 40)
    errors = [worst(rounded(module, x, activation_bits=bits), module, x) for bits in (8, 16)]
    assert errors[1] < errors[0] / 2
    program = rounded(module, x, activation_bits=16)
    zeros = [v.dtype for n, v in program.model.graph.initializers.items() if "zero_point" in n]
    assert ir.DataType.UINT16 in zeros


class Stored(torch.nn.Module):
    """A product and a convolution in float32 with constants in 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = torch.nn.Linear(64, 64).bfloat16(), torch.nn.Conv1d(8, 16, 3).half()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.linear(x, self.a.weight.float(), self.a.bias.float())
        x = x.reshape(-1, 8, 8)
        return torch.nn.functional.conv1d(x, self.c.weight.float(), self.c.bias.float())


def test_weights_in_16_bits_are_replaced() -> None:
    torch.manual_seed(0)
    module, x = Stored(), torch.randn(3, 64)
    program = rounded(module, x)
    report = program.quantization_report
    assert report is not None
    assert len(report.layers) == 2
    assert report.bytes_after < report.bytes_before * 0.65
    halves = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    assert not [v for v in program.model.graph.initializers.values() if v.dtype in halves]
    assert worst(program, module, x) < 0.03


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_products_of_another_dtype(dtype: torch.dtype) -> None:
    module, x = Network().to(dtype).eval(), torch.randn(3, 2, 40, dtype=dtype)
    program = coreai_onnx.convert(module, (x,))
    name = str(dtype).removeprefix("torch.")
    message = f"in float32 with weight\n  (first|up) computes in {name}: quantize the float32 model"
    with pytest.raises(QuantizationError, match=message):
        program.quantize(8, activations=True, calibration=[(x,)])


class Mixed(torch.nn.Module):
    """A layer in float16 after one in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(64, 64), torch.nn.Linear(64, 32).half()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).half())


def test_a_layer_of_another_dtype_is_kept() -> None:
    module, x = Mixed().eval(), torch.randn(3, 64)
    report = rounded(module, x).quantization_report
    assert report is not None
    assert [layer.path for layer in report.layers] == ["a"]
    assert [(one.path, one.reason) for one in report.kept] == [("b", "computes in float16")]


@pytest.mark.parametrize("method", ["percentile", "entropy"])
def test_an_outlier_in_the_calibration_data(method: str) -> None:
    torch.manual_seed(0)
    module, x = torch.nn.Linear(64, 8, bias=False).eval(), torch.randn(16, 64)
    calls = [(torch.randn(16, 64),) for _ in range(20)]
    calls[7][0][3, 5] = 1e4
    errors = []
    for chosen in ("minmax", method):
        program = coreai_onnx.convert(module, (x,))
        program.quantize(
            8, activations=True, calibration=calls, calibration_method=chosen, percentile=99.9
        )
        errors.append(worst(program, module, x))
    assert errors[0] > 0.5
    assert errors[1] < 0.1


def test_several_entrypoints() -> None:
    torch.manual_seed(0)
    first, second = torch.nn.Linear(8, 4).eval(), torch.nn.Linear(4, 2).eval()
    x, y = torch.randn(3, 8), torch.randn(3, 4)
    models = {
        "encode": coreai_onnx.convert(first, (x,)).model,
        "decode": coreai_onnx.convert(second, (y,)).model,
    }
    program = OnnxProgram(models)
    with pytest.raises(QuantizationError, match="the entrypoint decode has no calibration data"):
        program.quantize(8, activations=True, calibration={"encode": [(x,)]})
    program.quantize(8, activations=True, calibration={"encode": [(x,)], "decode": [(y,)]})
    reports = program.quantization_reports
    assert [len(reports[name].outputs) for name in models] == [1, 1]
    assert [len(reports[name].layers) for name in models] == [1, 1]


def test_errors_leave_the_program_unchanged() -> None:
    program = network()
    before = program.to_proto().SerializeToString(deterministic=True)
    wrong = [(np.ones((3, 3, 40), np.float32),)]
    for options, message in (
        ({}, "activations=True needs calibration data"),
        ({"calibration": []}, "there is no calibration data"),
        ({"calibration": [(np.ones((0, 2, 40), np.float32),)]}, "calibration call 1"),
        ({"calibration": wrong}, "calibration call 1"),
        ({"calibration": inputs(1, 0), "skip": ["*"]}, "there is nothing to quantize"),
    ):
        with pytest.raises(QuantizationError, match=message):
            program.quantize(8, activations=True, **options)
        assert program.to_proto().SerializeToString(deterministic=True) == before
