"""Comparisons with torch."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch

from coreai_onnx.conversion import convert
from coreai_onnx.converter import TorchConverter
from coreai_onnx.debugging.comparing.comparison import compare
from coreai_onnx.errors import ComparisonError, CoreaiError, ProviderError
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.libraries.library import ENVIRONMENT_VARIABLE
from tests.debugging.small_reference import converted as small
from tests.models.zoo import named
from tests.support.execution_providers import IDLE, WITHOUT_ARENA, count_without_arena
from tests.support.small_models import counter_model, linear_model, linear_weights, parse


def test_another_runtime_is_one_more_execution() -> None:
    program = small()
    comparison = compare(program, runtime=sys.executable)
    comparison.assert_close()
    name = f"onnxruntime {ort.__version__}"
    assert comparison.worst(name) == comparison.worst("bodies")
    assert name in str(comparison)


@pytest.fixture
def bodies_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "/nowhere/ops.so")


class Linear(torch.nn.Module):
    """What ``linear_model`` computes, off by ``error`` in one element."""

    def __init__(self, error: float = 0.0) -> None:
        super().__init__()
        weights = linear_weights()
        self.weight = torch.nn.Parameter(torch.from_numpy(weights["weight"]))
        self.bias = torch.nn.Parameter(torch.from_numpy(weights["bias"]))
        self.error = error

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = x @ self.weight + self.bias
        y[0, 0] += self.error
        return {"y": y}


class Counter(torch.nn.Module):
    """What ``counter_model`` computes."""

    def __init__(self, step: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("count", torch.ones(1))
        self.step = step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.count
        self.count += self.step
        return y


@pytest.mark.usefixtures("bodies_only")
def test_a_right_model(tmp_path: Path) -> None:
    program = OnnxProgram({"main": linear_model()})
    program.save(tmp_path / "m.onnx")
    for source in (program, tmp_path / "m.onnx", str(tmp_path / "m.onnx")):
        comparison = compare(source, Linear(), (torch.randn(3, 8),))
        assert comparison.ok
        comparison.assert_close()
        (row,) = comparison.rows
        assert (row.output, row.execution, row.dtype, row.shape) == (
            "y",
            "bodies",
            "float32",
            (3, 64),
        )
        assert "kernels: not built" in str(comparison)
        assert str(comparison).splitlines()[2].endswith("ok")


@pytest.mark.usefixtures("bodies_only")
def test_a_wrong_model() -> None:
    comparison = compare(
        linear_model(), Linear(error=0.5), [(torch.zeros(1, 8),), torch.zeros(2, 8)]
    )
    assert not comparison.ok
    assert len(comparison.rows) == len(comparison.failures) == 2
    assert comparison.worst("bodies").max_abs == pytest.approx(0.5)
    with pytest.raises(
        AssertionError, match=r"2 of 2 outputs differ(.|\n)*1 of 64 differ"
    ) as caught:
        comparison.assert_close()
    assert isinstance(caught.value, ComparisonError)
    assert isinstance(caught.value, CoreaiError)
    with pytest.raises(KeyError, match="kernels was not compared"):
        comparison.worst("kernels")


@pytest.mark.usefixtures("bodies_only")
@pytest.mark.parametrize("tolerances", [(0.0, 1.0), {"y": (0.0, 1.0)}, {"float32": (0.0, 1.0)}])
def test_tolerances(tolerances: Any) -> None:
    inputs = (torch.zeros(1, 8),)
    assert compare(linear_model(), Linear(error=0.5), inputs, tolerances=tolerances).ok
    assert not compare(linear_model(), Linear(error=2.0), inputs, tolerances=tolerances).ok


@pytest.mark.usefixtures("bodies_only")
def test_states_are_carried_and_compared() -> None:
    module = Counter()
    calls: list[Any] = [(torch.ones(2),), {"x": torch.ones(3)}, torch.ones(1)]
    comparison = compare(counter_model(), module, calls)
    comparison.assert_close()
    assert [row.output for row in comparison.rows] == ["y", "state count"] * 3
    assert module.count.tolist() == [1]
    wrong = compare(counter_model(), Counter(step=2.0), [(torch.ones(2),)])
    assert [row.output for row in wrong.failures] == ["state count"]


@pytest.mark.usefixtures("bodies_only")
class Labelled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return {"label": "text", "sum": x + 1, "none": None, "count": 3}


def test_text_and_none_are_left_out_and_numbers_are_compared() -> None:
    x = torch.randn(2)
    comparison = compare(convert(Labelled(), (x,)), Labelled(), (x,))
    comparison.assert_close()
    assert [row.output for row in comparison.rows if row.execution == "bodies"] == [
        "sum",
        "count",
    ]


class Mutates(torch.nn.Module):
    """Changes the second tensor of a pair in place, and returns the sum."""

    def __init__(self, error: float = 0.0) -> None:
        super().__init__()
        self.error = error

    def forward(self, pair: list[torch.Tensor]) -> torch.Tensor:
        first, second = pair
        second.mul_(2 + self.error)
        return first + 1


def test_what_is_written_to_an_input_is_compared() -> None:
    pair = [torch.randn(3), torch.randn(3)]
    program = convert(Mutates(), (pair,))
    comparison = compare(program, Mutates(), [(pair,), (pair,)])
    comparison.assert_close()
    assert {row.output for row in comparison.rows} == {"output", "pair_1_out"}
    wrong = compare(program, Mutates(0.5), (pair,))
    assert {row.output for row in wrong.failures} == {"pair_1_out"}


class Turn(torch.nn.Module):
    """Multiplies by a phase and keeps the product."""

    def __init__(self, dtype: torch.dtype, error: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("product", torch.zeros(3, dtype=dtype))
        self.error = error

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        self.product.copy_(z * (3 - 4j) + self.error * 1j)
        return self.product.conj()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=str)
def test_complex_modules(dtype: torch.dtype) -> None:
    z = torch.randn(3, dtype=torch.complex64).to(dtype)
    program = convert(Turn(dtype), (z,))
    comparison = compare(program, Turn(dtype), [(z,), (z.conj(),)])
    comparison.assert_close()
    name = str(dtype).removeprefix("torch.")
    found = {(row.output, row.dtype, row.shape) for row in comparison.rows}
    assert found == {("output", name, (3,)), ("state product", name, (3,))}
    assert not compare(program, Turn(dtype, 0.1), (z,)).ok  # of the imaginary part only


def test_dtypes_and_shapes_are_compared() -> None:
    class Double(Linear):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"y": super().forward(x)["y"].double()}

    comparison = compare(linear_model(), Double(), (torch.zeros(1, 8),))
    assert not comparison.ok
    assert "is float32[1, 64], expected float64[1, 64]" in str(comparison)


@pytest.mark.usefixtures("bodies_only")
def test_another_number_of_outputs() -> None:
    class Two(Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x)["y"], x

    with pytest.raises(ComparisonError, match="returned 2 values, the model has 1 outputs: y"):
        compare(linear_model(), Two(), (torch.zeros(1, 8),))


def zoo(name: str, dtype: torch.dtype, layers: int = 2) -> tuple[torch.nn.Module, Any, Any]:
    """Return a module of the zoo, its arguments and its program."""
    architecture = named(name)
    module = architecture.module(dtype)
    if layers > 2:
        config = copy.deepcopy(module.config)
        config.num_hidden_layers = layers
        torch.manual_seed(0)
        module = type(module)(config).eval().to(dtype)
    arguments = architecture.arguments(2, 9, dtype)
    exported = architecture.export(module, dtype)
    program = TorchConverter().add_exported_program(exported).to_onnx().optimize()
    return module, arguments, program


@pytest.mark.parametrize(
    ("name", "dtype", "layers"),
    [("llama", torch.float16, 2), ("bert", torch.bfloat16, 2), ("llama", torch.float32, 12)],
)
def test_a_right_export_passes_and_a_wrong_one_does_not(
    name: str, dtype: torch.dtype, layers: int
) -> None:
    module, arguments, program = zoo(name, dtype, layers)
    right = compare(program, module, arguments)
    right.assert_close()
    assert "torch's own error" in str(right)
    torch_tolerances = {
        "float32": (1.3e-6, 1e-5),
        "float16": (1e-3, 1e-5),
        "bfloat16": (1.6e-2, 1e-5),
    }
    assert layers > 2 or not compare(program, module, arguments, tolerances=torch_tolerances).ok
    bias = next(n for n in program.model.graph.initializers if "norm" in n.lower())
    value = program.model.graph.initializers[bias]
    array = value.const_value.numpy()
    value.const_value = ir.tensor((array * 1.25).astype(array.dtype), name=bias)
    assert not compare(program, module, arguments).ok


def test_the_record_is_the_default_reference_and_has_the_default_inputs() -> None:
    program = small()
    found = compare(program)
    found.assert_close()
    assert {row.shape for row in found.rows} == {(3, 4)}
    assert next(row.output for row in compare(program, program.record()).rows) == "output"
    next(n for n in program.model.graph if n.op_type == "Add").op_type = "Sub"
    assert not compare(program).ok


def test_values_inside_of_the_graph_are_compared_by_module() -> None:
    program = small()
    found = compare(program, values=True)
    assert {row.module for row in found.values} >= {"norm", "first", "second"}
    assert all(row.ok for row in found.values)
    next(n for n in program.model.graph if n.op_type == "Tanh").op_type = "Sin"
    wrong = compare(program, values=True)
    first = next(row for row in wrong.values if not row.ok)
    assert first.output == "tanh"
    assert "first" in wrong.by_module()
    assert wrong.by_module() in str(wrong)
    with pytest.raises(ComparisonError, match="no record"):
        compare(linear_model(), Linear(), (torch.zeros(1, 8),), values=True)


def test_a_histogram_of_errors() -> None:
    comparison = compare(linear_model(), Linear(error=0.5), (torch.zeros(1, 8),))
    table = comparison.histogram("y")
    assert "1e-1" in table
    assert "█" in table
    with pytest.raises(KeyError, match="z was not compared"):
        comparison.histogram("z")


def test_an_all_nan_model_is_not_ok() -> None:
    class Nan(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x - x) / (x - x)

    x = torch.randn(3)
    found = compare(convert(Nan(), (x,)), Nan(), (x,))
    assert not found.ok
    assert "every element is NaN" in str(found)


def test_notes_are_printed() -> None:
    module = torch.nn.Dropout(0.5)
    found = compare(convert(torch.nn.Identity(), (torch.ones(8),)), module, torch.ones(8))
    assert "note: the reference draws random numbers" in str(found)


def rms_model(scale: float) -> ir.Model:
    """A composite that the kernels know, with a body that is right for ``scale`` 1 only."""
    return parse(f"""<ir_version: 10, opset_import: ["": 21, "ai.coreai": 1]>
    agraph (float[batch, 8] x) => (float[batch, 8] y) <float[8] weight = {{1, 1, 1, 1, 1, 1, 1, 1}}>
    {{ y = ai.coreai.rms_norm <axes = [-1], eps = 0.5, version = 1> (x, weight) }}
    <domain: "ai.coreai", opset_import: ["": 21]> rms_norm <axes, eps, version> (x, weight) => (y)
    {{ axes = Constant<value_ints = [-1]>()  square = Mul(x, x)  mean = ReduceMean(square, axes)
      eps = Constant<value_float = 0.5>()  shifted = Add(mean, eps)  root = Sqrt(shifted)
      normal = Div(x, root)  weighted = Mul(normal, weight)
      scale = Constant<value_float = {scale}>()  y = Mul(weighted, scale) }}""")


class RmsNorm(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 0.5).sqrt()


def test_kernels_and_bodies_are_compared_apart(kernels: Path) -> None:
    assert kernels.is_file()
    x = torch.randn(3, 8)
    both = compare(rms_model(1.0), RmsNorm(), (x,))
    assert both.kernels_compared
    assert [row.execution for row in both.rows] == ["bodies", "kernels"]
    both.assert_close()
    assert "not built" not in str(both)
    wrong_body = compare(rms_model(2.0), RmsNorm(), (x,))
    assert [row.execution for row in wrong_body.failures] == ["bodies"]
    assert np.isclose(wrong_body.worst("bodies").max_rel, 1.0)


def test_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    program = small()
    opened = count_without_arena(monkeypatch)
    comparison = compare(program, values=True, kernels=False, provider=WITHOUT_ARENA)
    comparison.assert_close()
    assert len(opened) == 2
    assert str(comparison).endswith(
        "note: the model ran on CPUExecutionProvider\n"
        "kernels: not compared; kernels=True compares them"
    )
    with pytest.warns(RuntimeWarning, match="takes no node"):
        assert not compare(program, provider=IDLE).kernels_compared
    with pytest.raises(ProviderError, match="tpu is not available"):
        compare(program, provider="tpu")


def test_kernels_that_are_asked_for(kernels: Path) -> None:
    assert kernels.is_file()
    with pytest.warns(RuntimeWarning, match="takes no node"):
        comparison = compare(small(), kernels=True, provider=IDLE)
    assert [row.execution for row in comparison.rows] == ["bodies", "kernels"]
