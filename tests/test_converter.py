"""The converter's API: staging, names, states, entrypoints, errors, determinism."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from tqdm import tqdm

import coreai_onnx
from coreai_onnx import TorchConverter, get_decomp_table
from coreai_onnx.errors import (
    ConversionError,
    ExportError,
    InvalidModelError,
    NothingToConvertError,
    RegistrationError,
    StagingError,
    UnsupportedOpsError,
)
from tests.support.tolerances import assert_close


class Scaled(torch.nn.Module):
    """x @ w.T + b, times two."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * 2


class Counter(torch.nn.Module):
    """Adds to a buffer at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.full((3,), 5.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


class Outputs(torch.nn.Module):
    """Several outputs, by key and by position."""

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"doubled": x * 2, "parts": (x + 1, x), "length": x.shape[0]}


def exported(module: torch.nn.Module, *args: torch.Tensor, **kwargs: Any) -> Any:
    return torch.export.export(module.eval(), args, **kwargs)


def names(values: Any) -> list[str]:
    return [v.name for v in values]


def test_calls_chain_and_the_result_runs() -> None:
    module, x = Scaled().eval(), torch.randn(2, 4)
    program = TorchConverter().add_exported_program(exported(module, x)).to_onnx().optimize()
    (actual,) = program.run(x, kernels=False)
    assert_close(actual, module(x).detach())


@pytest.mark.parametrize("decompose", [True, False])
def test_decomposed_and_undecomposed_programs_agree(decompose: bool) -> None:
    module, x = Counter(), torch.randn(3)
    program = exported(module, x)
    if decompose:
        program = program.run_decompositions(get_decomp_table())
    converted = TorchConverter().add_exported_program(program).to_onnx()
    session = coreai_onnx.session(converted, kernels=False)
    (first,), (second,) = session.run(x), session.run(x)
    assert_close(first, (5.0 + x) * 2)
    assert_close(second, (5.0 + 2 * x) * 2)


def test_weights_inputs_and_dims_have_the_names_of_the_users_python() -> None:
    batch = torch.export.Dim("batch")
    program = exported(Scaled(), torch.randn(2, 4), dynamic_shapes={"x": {0: batch}})
    model = TorchConverter().add_exported_program(program).to_onnx().model
    assert names(model.graph.inputs) == ["x"]
    assert str(model.graph.inputs[0].shape[0]) == "batch"
    assert {"linear.weight", "linear.bias"} <= set(model.graph.initializers)
    assert names(model.graph.outputs) == ["output"]


def test_outputs_are_named_by_key_and_position() -> None:
    batch = torch.export.Dim("batch")
    program = exported(Outputs(), torch.randn(3), dynamic_shapes={"x": {0: batch}})
    converted = TorchConverter().add_exported_program(program).to_onnx()
    assert names(converted.model.graph.outputs) == ["doubled", "parts.0", "parts.1", "length"]
    outputs = converted.run(torch.ones(5), kernels=False)
    assert int(outputs["length"]) == 5
    assert_close(outputs["parts.1"], torch.ones(5))


def test_given_names_are_used() -> None:
    program = exported(Counter(), torch.randn(3))
    converter = TorchConverter().add_exported_program(
        program, input_names=["step"], output_names=["twice"], state_names=["sum"]
    )
    graph = converter.to_onnx().model.graph
    assert names(graph.inputs) == ["sum", "step"] or names(graph.inputs) == ["step", "sum"]
    assert names(graph.outputs) == ["twice", "sum_out"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"input_names": ["a", "b"]}, "Graph has 1 live inputs"),
        ({"output_names": ["a", "b"]}, "Graph has 1 live outputs"),
        ({"state_names": ["a", "b"]}, "Graph has 1 stateful inputs"),
    ],
)
def test_a_wrong_number_of_names_is_an_error(given: dict[str, list[str]], message: str) -> None:
    converter = TorchConverter().add_exported_program(exported(Counter(), torch.randn(3)), **given)
    with pytest.raises(ConversionError, match=message):
        converter.to_onnx()


def test_entrypoints_are_kept_apart() -> None:
    x = torch.randn(2, 4)
    converter = TorchConverter().add_exported_program(exported(Scaled(), x))
    with pytest.raises(StagingError, match="already staged"):
        converter.add_exported_program(exported(Scaled(), x))
    converter.add_exported_program(exported(Outputs(), torch.randn(3)), entrypoint_name="other")
    assert converter.to_onnx().entrypoints == ("main", "other")
    assert converter.to_onnx(["other"]).entrypoints == ("other",)
    with pytest.raises(StagingError, match="no program is staged as third"):
        converter.to_onnx(["main", "third"])
    with pytest.raises(NothingToConvertError, match="No programs to convert"):
        converter.clear().to_onnx()


def test_opset_out_of_range_is_an_error() -> None:
    converter = TorchConverter().add_exported_program(exported(Scaled(), torch.randn(2, 4)))
    with pytest.raises(StagingError, match="18 to 26"):
        converter.to_onnx(opset_version=17)


def test_a_model_that_does_not_export_is_an_error_and_stays_as_it_was() -> None:
    class Branching(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if self.inner(x).sum() > 0 else -x

    model = Branching()
    with pytest.raises(ExportError, match="Your model failed to export"):
        TorchConverter().add_pytorch_module(
            model,
            export_fn=lambda m: torch.export.export(m, (torch.randn(2, 2),)),
            externalize_modules=[torch.nn.Linear],
        )
    assert "forward" not in vars(model.inner)


def test_unsupported_ops_are_reported_together_with_their_places() -> None:
    @torch.library.custom_op("coreai_test::first", mutates_args=())
    def first(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @torch.library.custom_op("coreai_test::second", mutates_args=())
    def second(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    first.register_fake(torch.empty_like)
    second.register_fake(torch.empty_like)

    class Inner(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return first(second(x)) + first(x)

    model = torch.nn.Sequential(Inner())
    converter = TorchConverter().add_exported_program(exported(model, torch.randn(2)))
    with pytest.raises(UnsupportedOpsError) as raised:
        converter.to_onnx()
    text = str(raised.value)
    assert [(op.name, len(op.places)) for op in raised.value.ops] == [
        ("coreai_test.first.default", 2),
        ("coreai_test.second.default", 1),
    ]
    assert "at 0 (Inner)" in text
    assert "test_converter.py:" in text
    assert "register_torch_lowering" in text

    @converter.register_torch_lowering("coreai_test::first.default")
    def lower_first(op: Any, x: Any) -> Any:
        return op.Identity(x)

    @converter.register_torch_lowering("coreai_test::second.default")
    def lower_second(op: Any, x: Any) -> Any:
        return op.Neg(x)

    (actual,) = converter.to_onnx().run(torch.ones(2), kernels=False)
    assert_close(actual, torch.zeros(2))


def test_registering_a_lowering_checks_its_name() -> None:
    converter = TorchConverter()
    for name in ("relu", "aten::relu", "aten.relu.default", "::relu.default"):
        with pytest.raises(RegistrationError, match=r"namespace::op\.overload"):
            converter.register_torch_lowering(name)
    with pytest.raises(RegistrationError, match="allow_override"):
        converter.register_torch_lowering("aten::relu.default")

    @converter.register_torch_lowering("aten::relu.default", allow_override=True)
    def relu(op: Any, self: Any) -> Any:
        return op.Neg(self)

    converter.add_exported_program(exported(torch.nn.ReLU(), torch.ones(2)))
    (actual,) = converter.to_onnx().run(torch.ones(2), kernels=False)
    assert_close(actual, -torch.ones(2))


@pytest.mark.parametrize("mode", ["debug", 1, True])
def test_a_mode_is_one_of_the_enumeration(mode: Any) -> None:
    with pytest.raises(StagingError, match=r"mode is TorchConverter.Mode.DEBUG or .*, not"):
        TorchConverter(mode=mode)


class Outer(torch.nn.Module):
    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.outer(x, i) + 1


def untyped(op: Any, op_type: str, x: Any, **attributes: Any) -> Any:
    """Append a node of which the builder checks nothing."""
    result = op.scope.append(op_type, [x], attributes).outputs[0]
    result.dtype = x.dtype
    return result


@pytest.mark.parametrize(
    ("lowering", "what"),
    [
        (lambda op, x, i: op.Mul(op.unsqueeze(x, [1]), i), "Mul(float[3, 1], int64[4]), node"),
        (lambda op, x, i: untyped(op, "Nonsense", x), "No Op registered for Nonsense"),
        (lambda op, x, i: untyped(op, "Conv", x), "has input size 1 not in range"),
        (lambda op, x, i: untyped(op, "Neg", x, axis=1), "Unrecognized attribute: axis"),
        (lambda op, x, i: untyped(op, "Softmax", x, axis=1.5), "attribute type in 'axis'"),
        (lambda op, x, i: op.unsqueeze(x, [1]), "differ in dimension 1: (1) vs (4)"),
        (
            lambda op, x, i: op.Mul(op.unsqueeze(x, [1]), op.cast(op.unsqueeze(i, [1]), x.dtype)),
            "Mul(float[3, 1], float[4, 1]), node 'inner.Mul', at opset 23: Incompatible dimensions",
        ),
    ],
)
def test_a_lowering_that_makes_an_invalid_node_is_named(lowering: Any, what: str) -> None:
    """The op, the ATen op it was made for, the module, the user's line, and what to do."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Outer()

        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return self.inner(x, i)

    converter = TorchConverter()
    converter.add_exported_program(exported(Model(), torch.randn(3), torch.arange(4)))

    @converter.register_torch_lowering("aten::outer.default", allow_override=True)
    def wrong(op: Any, self: Any, vec2: Any) -> Any:
        return lowering(op, self, vec2)

    with pytest.raises(InvalidModelError) as raised:
        converter.to_onnx()
    first, second, third, fourth = str(raised.value).splitlines()
    assert first == "aten.outer.default: a node of its lowering breaks the rules of ONNX"
    assert what in second
    assert third.startswith("  at inner (Outer)   ")
    assert "test_converter.py:" in third
    assert third.endswith("   return torch.outer(x, i) + 1")
    assert fourth == "  the lowering that is registered for it makes this node: correct it there"


def test_conversion_is_deterministic() -> None:
    program = exported(Scaled(), torch.randn(2, 4))
    protos = [
        TorchConverter().add_exported_program(program).to_onnx().optimize().to_proto()
        for _ in range(2)
    ]
    assert protos[0].SerializeToString() == protos[1].SerializeToString()


def test_a_long_conversion_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is a node of the program; what it is made of does not count."""
    made: list[Any] = []

    class Bar(tqdm):
        def __init__(self, **options: Any) -> None:
            made.append(options)
            super().__init__(**{**options, "disable": False, "delay": 0.0, "file": io.StringIO()})
            made.append(self)

    monkeypatch.setattr("tqdm.tqdm", Bar)

    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.cond(x.sum() > 0, lambda x: x.sin().cos(), lambda x: -x, (x,))
            return torch.nn.functional.huber_loss(y, x)

    TorchConverter().add_exported_program(exported(Branches(), torch.ones(3))).to_onnx()
    options, bar = made
    assert bar.n == options["total"] > 0
    assert options["desc"] == "lowering main"
    assert options["disable"] is None  # tqdm: shown on a terminal only


def test_repr_lists_programs_and_lowerings() -> None:
    converter = TorchConverter().add_exported_program(exported(Scaled(), torch.randn(2, 4)))
    converter.register_torch_lowering("my_lib::op.default")(lambda op, x: x)
    assert "main: ExportedProgram" in repr(converter)
    assert "my_lib.op.default" in repr(converter)
