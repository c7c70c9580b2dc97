"""After every pass of a user the program is valid, or the error names pass, node and line."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx
from torch.export import Dim, export

from coreai_onnx.delegation import to_edge
from coreai_onnx.errors import PassError, SpecViolationError
from tests.support.tolerances import assert_close

aten = torch.ops.aten


class Conv(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x).relu()


X = torch.randn(1, 3, 8, 8)


@pytest.fixture(scope="module")
def manager():
    return to_edge(export(Conv(), (X,)))


def node_of(module: fx.GraphModule, target: object) -> fx.Node:
    return next(n for n in module.graph.nodes if n.target is target)


def to_method(module: fx.GraphModule) -> None:
    """A call of a method instead of an operator."""
    relu = node_of(module, aten.relu.default)
    relu.op, relu.target = "call_method", "relu"


def to_function(module: fx.GraphModule) -> None:
    """A function of torch that is not an operator."""
    node_of(module, aten.relu.default).target = torch.relu


def to_in_place(module: fx.GraphModule) -> None:
    """An operator that changes its argument."""
    node_of(module, aten.relu.default).target = aten.relu_.default


def drop_weight(module: fx.GraphModule) -> None:
    """A convolution with one input."""
    conv = node_of(module, aten.convolution.default)
    conv.args = conv.args[:1]


def wrong_shape(module: fx.GraphModule) -> None:
    """A product of tensors that do not fit."""
    relu = node_of(module, aten.relu.default)
    relu.target, relu.args = aten.mm.default, (relu.args[0], relu.args[0])


def wrong_attribute(module: fx.GraphModule) -> None:
    """A number where the operator takes a list."""
    conv = node_of(module, aten.convolution.default)
    conv.args = (*conv.args[:3], "one", *conv.args[4:])


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (to_method, "is a call_method"),
        (to_function, "relu: is not an operator of torch.ops"),
        (to_in_place, "aten.relu_.default: changes an argument in place"),
        (drop_weight, "aten.convolution.default: does not accept its arguments"),
        (wrong_shape, "aten.mm.default: does not accept its arguments"),
        (wrong_attribute, "aten.convolution.default: does not accept its arguments"),
    ],
)
def test_an_invalid_node_is_an_error_with_the_line(manager, broken, fault) -> None:
    before = str(manager.exported_program().graph)
    with pytest.raises(SpecViolationError, match=fault) as caught:
        manager.transform([broken])
    assert f"pass {broken.__name__} left an invalid node" in str(caught.value)
    assert "test_verification.py:" in str(caught.value)
    assert "self.conv(x)" in str(caught.value)
    assert str(manager.exported_program().graph) == before


def unsorted_graph(module: fx.GraphModule) -> None:
    """A node that reads what comes later."""
    conv, relu = (node_of(module, t) for t in (aten.convolution.default, aten.relu.default))
    relu.append(conv)


def without_input(module: fx.GraphModule) -> None:
    """A graph that ignores its input."""
    x = next(n for n in module.graph.nodes if n.name == "x")
    node_of(module, aten.convolution.default).replace_input_with(x, next(iter(module.graph.nodes)))
    module.graph.erase_node(x)


def one_more_output(module: fx.GraphModule) -> None:
    """A graph with two outputs."""
    conv = node_of(module, aten.convolution.default)
    output = next(n for n in module.graph.nodes if n.op == "output")
    output.args = ((*output.args[0], conv),)


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (unsorted_graph, "broke the graph"),
        (without_input, "changed the inputs of the program"),
        (one_more_output, "changed the number of outputs of the program, from 1 to 2"),
    ],
)
def test_an_invalid_graph_is_an_error(manager, broken, fault) -> None:
    with pytest.raises(SpecViolationError, match=f"pass {broken.__name__} {fault}"):
        manager.transform([broken])


def test_types_of_changed_nodes_are_inferred(manager) -> None:
    def halved(module: fx.GraphModule) -> None:
        relu = node_of(module, aten.relu.default)
        with module.graph.inserting_before(relu):
            sliced = module.graph.call_function(aten.slice.Tensor, (relu.args[0], 1, 0, 2))
        relu.args = (sliced,)

    made = manager.transform([halved])
    assert node_of(made.exported_program().graph_module, aten.relu.default).meta["val"].shape == (
        1,
        2,
        6,
        6,
    )
    (y,) = made.finish().run(X)
    assert_close(y, made.exported_program().module()(X))


def test_a_copy_may_rename_inputs() -> None:
    x = torch.randn(3)
    made = to_edge(export(torch.nn.ReLU(), (x,))).transform(
        [lambda module: fx.Transformer(module).transform()]
    )
    assert made.exported_program().graph_signature.user_inputs == ("input",)
    assert_close(made.finish().run(input=x)[0], x.relu())


def test_numbers_may_be_computed(manager) -> None:
    class Sized(torch.nn.Module):
        def forward(self, x):
            return x.reshape(x.shape[0] * 2, -1)

    exported = export(Sized(), (torch.randn(3, 4),), dynamic_shapes=({0: Dim("rows")},))

    def commuted(module: fx.GraphModule) -> None:
        node = next(n for n in module.graph.nodes if n.target is operator.mul)
        node.args = node.args[::-1]

    made = to_edge(exported).transform([commuted])
    x = torch.randn(5, 4)
    assert_close(made.finish().run(x)[0], x.reshape(10, 2))


def test_an_invalid_node_of_a_graph_pass_is_an_error(manager) -> None:
    def nonsense(graph, why) -> int:
        changed = [node for node in graph.nodes if node.op == "Relu"]
        for node in changed:
            node.op = "Nonsense"
        return len(changed)

    def conv_of_one(graph, why) -> int:
        changed = [n for n in graph.nodes if n.op == "Conv" and len(n.inputs) > 1]
        for node in changed:
            node.inputs = node.inputs[:1]
        return len(changed)

    for broken, text in ((nonsense, "Nonsense"), (conv_of_one, "Conv")):
        with pytest.raises(SpecViolationError, match=text) as caught:
            manager.transform([broken])
        assert f"pass {broken.__name__}" in str(caught.value)
        assert "test_verification.py:" in str(caught.value)
    (y,) = manager.finish().run(X)
    assert_close(y, manager.exported_program().module()(X).detach())


def test_a_pass_that_raises_is_named(manager) -> None:
    def broken(module: fx.GraphModule) -> None:
        raise KeyError("gone")

    with pytest.raises(PassError, match="pass broken raised KeyError"):
        manager.transform([broken])
