"""Names of inputs, outputs and states: the user's to the letter, defaults make way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coreai_onnx import TorchConverter
from coreai_onnx.errors import ConversionError
from coreai_onnx.lower.nodes.scope import Names
from coreai_onnx.lower.walk.interface import IONames, interface
from tests.support.tolerances import assert_close


class Keeps(torch.nn.Module):
    """A buffer and an input that change; three outputs, one of them the buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kv", torch.full((4,), 0.5))

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> dict[str, torch.Tensor]:
        self.kv.add_(x)
        total.mul_(self.kv)
        mul = x * 2
        return {"mul": mul + 1, "x": mul, "kv": self.kv}


def exported() -> torch.export.ExportedProgram:
    return torch.export.export(Keeps(), (torch.ones(4), torch.ones(4)))


def named(**names: Any) -> tuple[list[str], list[str]]:
    """Return the names of the graph's inputs and outputs."""
    converter = TorchConverter().add_exported_program(exported(), **names)
    graph = converter.to_onnx().model.graph
    return [str(v.name) for v in graph.inputs], [str(v.name) for v in graph.outputs]


def test_defaults() -> None:
    """Keys of the result that are names of inputs make way."""
    inputs, outputs = named()
    assert inputs == ["kv", "x", "total"]
    assert outputs == ["mul", "x_1", "kv_1", "kv_out", "total_out"]


def test_a_mutated_input_stays_an_input_unless_it_has_the_name_of_a_state() -> None:
    def interface_of(**names: Any) -> tuple[Any, ...]:
        session = TorchConverter().add_exported_program(exported(), **names).to_onnx().session()
        inputs, outputs = ([i.name for i in x] for x in (session.inputs, session.outputs))
        return inputs, outputs[3:], session.states

    assert interface_of() == (["x", "total"], ["total_out"], ("kv",))
    assert interface_of(state_names=["a"]) == (["x", "total"], ["total_out"], ("a",))
    assert interface_of(state_names=["a", "b"]) == (["x"], [], ("a", "b"))
    renamed = interface_of(input_names=["step", "sum"])
    assert renamed == (["step", "sum"], ["sum_out"], ("kv",))


def test_given_names_are_kept_to_the_letter() -> None:
    """Also where a default, a weight or a value in the graph would have the name."""
    inputs, outputs = named(
        input_names=["total"], output_names=["mul_1", "add", "kv"], state_names=["x", "mul"]
    )
    assert inputs == ["x", "total", "mul"]
    assert outputs == ["mul_1", "add", "kv", "x_out", "mul_out"]


def test_an_empty_list_means_the_defaults() -> None:
    assert named(input_names=[], output_names=[], state_names=[]) == named()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"state_names": ["a", "a"]}, "duplicate names among inputs, outputs and states: a"),
        ({"input_names": ["a"], "state_names": ["a", "b"]}, "duplicate names .*: a"),
        ({"input_names": ["a", "z"], "output_names": ["a", "b", "c"]}, "duplicate names .*: a"),
        (
            {"output_names": ["a_out", "b", "c"], "state_names": ["a", "d"]},
            "duplicate names .*: a_out",
        ),
        ({"input_names": ["", "x"]}, "'' is not a name"),
        ({"input_names": "x"}, "not the string 'x'"),
        ({"input_names": ["a"]}, "2 live inputs, but 1 names"),
        ({"input_names": ["a", "b"], "state_names": ["c", "d"]}, "1 live inputs, but 2 names"),
        ({"output_names": ["a"]}, "3 live outputs, but 1 names"),
        ({"state_names": ["a", "b", "c"]}, "2 stateful inputs, but 3 names"),
    ],
)
def test_names_that_cannot_be(names: dict[str, Any], message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        named(**names)


def test_results_that_are_no_tensors_count_as_outputs_if_they_are_numbers() -> None:
    class Mixed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x + 1, None, 3, "text"

    program = torch.export.export(Mixed(), (torch.ones(2),))
    found = interface(program, IONames(), Names())
    assert found.outputs == ["output_0", "output_2"]
    assert (found.inputs, found.states) == ({"x": "x"}, {})


def test_the_initial_value_is_that_of_the_conversion() -> None:
    """Not what the module has made of its buffer since."""
    module = Keeps()
    program = torch.export.export(module, (torch.ones(4), torch.ones(4)))
    converted = TorchConverter().add_exported_program(program).to_onnx()
    module(torch.ones(4), torch.ones(4))
    outputs = converted.run(x=torch.ones(4), total=torch.ones(4), kernels=False)
    assert_close(outputs["kv_1"], torch.full((4,), 1.5))


def test_states_go_on_under_given_names() -> None:
    names = {"input_names": ["step"], "state_names": ["cache", "sum"]}
    program = TorchConverter().add_exported_program(exported(), **names).to_onnx().optimize()
    session, module = program.session(kernels=False), Keeps()
    total = torch.ones(4)
    for call in range(3):
        step = torch.randn(4)
        expected = module(step, total)
        given = {"sum": torch.ones(4)} if call == 0 else {}
        outputs = session.run(step=step, **given)
        for name, key in (("mul", "mul"), ("x", "x"), ("kv", "kv")):
            assert_close(outputs[name], expected[key])
        assert_close(outputs.states["cache"], module.kv)
        assert_close(outputs.states["sum"], total)
