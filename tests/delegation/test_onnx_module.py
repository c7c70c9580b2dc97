"""ONNX models of other exporters inside of larger modules."""

from __future__ import annotations

import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch.export import Dim, export

import coreai_onnx
from coreai_onnx.delegation import OnnxModule
from coreai_onnx.errors import DelegationError, LoadError
from tests.delegation.foreign_models import example, parsed, with_functions
from tests.support import my_ops
from tests.support.small_models import counter_model
from tests.support.tolerances import assert_close


class Larger(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.head = torch.nn.Linear(32, 3)

    def forward(self, x, scale):
        y, total = self.inner(x.sin(), scale=scale)
        return self.head(y) + total


def wanted(module: Larger, x, scale) -> torch.Tensor:
    evaluator = ReferenceEvaluator(with_functions())
    found = evaluator.run(None, {"x": x.sin().numpy(), "scale": scale.numpy()})
    y, total = map(torch.from_numpy, found)
    return module.head(y).detach() + total


@pytest.fixture
def path(tmp_path):
    onnx.save(with_functions(), tmp_path / "scaled-sum.onnx")
    return tmp_path / "scaled-sum.onnx"


def test_it_runs_eagerly(path) -> None:
    module, (x, scale) = Larger(OnnxModule(path)), example(5)
    assert_close(module(x, scale).detach(), wanted(module, x, scale))


@pytest.mark.parametrize("strict", [True, False])
def test_a_file_becomes_a_function(path, strict: bool) -> None:
    module, rows = Larger(OnnxModule(path)), Dim("rows", min=2, max=64)
    shapes = ({0: rows}, {0: rows})
    program = export(module, example(3), dynamic_shapes=shapes, strict=strict)
    (call,) = (n for n in program.graph.nodes if "onnx_call" in str(n.target))
    assert [tuple(map(str, t.shape)) for t in call.meta["val"]] == [
        (str(rows_of(program)), "32"),
        (str(rows_of(program)), "1"),
    ]
    converted = coreai_onnx.convert(module, example(3), dynamic_shapes=shapes)
    functions = [f.name for f in converted.model.functions.values()]
    assert functions == ["scaled_sum.0.scaled", "scaled_sum"]
    (node,) = (n for n in converted.model.graph if n.domain == "ai.coreai.onnx")
    assert [str(v.name) for v in node.inputs][2:] == ["inner.weight_0"]
    for count in (2, 7):
        x, scale = example(count)
        assert_close(converted.run(x, scale)[0], wanted(module, x, scale))


def rows_of(program):
    (x,) = (n for n in program.graph.nodes if n.name == "x")
    return x.meta["val"].shape[0]


def test_changed_weights_are_used() -> None:
    module, args = OnnxModule(with_functions()), example(2)
    before = module(*args)[0]
    module.weight_0.mul_(2)
    assert_close(module(*args)[0], before * 2)


def test_a_missing_file_is_an_error(tmp_path) -> None:
    with pytest.raises(LoadError, match=r"none\.onnx: no such file"):
        OnnxModule(tmp_path / "none.onnx")


def test_inputs_that_are_no_tensors_are_errors() -> None:
    for interface, body in (
        ("(string[n] x) => (string[n] y)", "y = Identity(x)"),
        ("(seq(float[n]) x) => (float[n] y)", "i = Constant<value_int=0>() y = SequenceAt(x, i)"),
    ):
        with pytest.raises(DelegationError, match=r"x is .*not a tensor of a dtype of torch"):
            OnnxModule(parsed(interface, body))


def test_a_model_with_states_is_an_error() -> None:
    with pytest.raises(DelegationError, match="keeps states between calls: count"):
        OnnxModule(counter_model())


def test_operators_of_a_custom_op_library() -> None:
    source = parsed("(float[n] x) => (float[n] y)", "y = my.ops.Scale<factor = 3.0>(x)")
    source.opset_import.add(domain="my.ops", version=1)
    x, libraries = torch.randn(2), [my_ops.library()]
    module = OnnxModule(source, custom_ops=libraries)
    assert_close(module(x), x * 3)
    assert_close(coreai_onnx.convert(module, (x,)).run(x, custom_ops=libraries)[0], x * 3)
