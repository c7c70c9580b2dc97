"""Views undone: each on every tensor it can be taken of, against a write in place."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from coreai_onnx.export.functionalize.views import Write, undone
from tests.support.tolerances import assert_close

View = Callable[[torch.Tensor], torch.Tensor]
VIEWS: dict[str, View] = {
    "slice": lambda t: t[1:],
    "slice_step": lambda t: t[:, 1:4:2],
    "select": lambda t: t[-1],
    "narrow": lambda t: t.narrow(1, 1, 2),
    "diagonal": lambda t: t.diagonal(1, 0, 2),
    "transpose": lambda t: t.transpose(0, 2),
    "swapaxes": lambda t: t.swapaxes(1, 2),
    "permute": lambda t: t.permute(2, 0, -2),
    "turn": lambda t: t[0].t(),
    "view": lambda t: t.view(6, 4),
    "flatten": lambda t: t.flatten(1),
    "unflatten": lambda t: t.unflatten(2, (2, 2)),
    "unsqueeze": lambda t: t.unsqueeze(-1),
    "squeeze": lambda t: t.unsqueeze(0).squeeze(0),
    "unbind": lambda t: t.unbind(1)[2],
    "split": lambda t: t.split(2, 2)[1],
    "split_with_sizes": lambda t: t.split([1, 3], 2)[1],
    "chunk": lambda t: t.chunk(2, 1)[0],
    "alias": lambda t: t.detach(),
    "expand": lambda t: t.expand(2, 3, 4),
}


def chain(view: View) -> tuple[fx.Graph, list[fx.Node]]:
    """Return a trace of the view, and the tensors from the view itself to what it is taken of."""
    traced = make_fx(view, tracing_mode="fake", pre_dispatch=True)(torch.zeros(2, 3, 4))
    (node,) = traced.graph.output_node().all_input_nodes
    nodes = [node]
    while node.op == "call_function":
        (node,) = node.all_input_nodes
        nodes.append(node)
    return traced.graph, [n for n in nodes if isinstance(n.meta["val"], torch.Tensor)]


@pytest.mark.parametrize("name", list(VIEWS))
def test_a_view_is_undone(name: str) -> None:
    view = VIEWS[name]
    graph, tensors = chain(view)
    output = graph.output_node()
    with graph.inserting_before(output):
        value = new = graph.placeholder("new")
        for made, of in itertools.pairwise(tensors):
            found = undone(Write(graph, made, of, value, lambda n: n))
            assert found is not None
            value = found
    output.args = (value,)
    new.meta["val"] = tensors[0].meta["val"]
    tensor = torch.randn(2, 3, 4)
    elements = torch.randn(view(tensor).shape)
    expected = tensor.clone()
    view(expected).copy_(elements)
    assert_close(fx.GraphModule({}, _in_order(graph))(tensor, elements), expected)


def _in_order(graph: fx.Graph) -> fx.Graph:
    """Return the graph with its placeholders in front."""
    first = next(iter(graph.nodes))
    for node in [n for n in graph.nodes if n.op == "placeholder" and n is not first]:
        first.append(node)
    graph.lint()
    return graph


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.as_strided((2, 2), (1, 1)),
        lambda t: t[:, :1].expand(2, 3, 4),
        lambda t: t.narrow(0, -1, 1),
        lambda t: t.unfold(2, 2, 1),
    ],
)
def test_views_that_cannot_be_undone(view: View) -> None:
    graph, nodes = chain(view)
    with graph.inserting_before(graph.output_node()):
        assert undone(Write(graph, nodes[0], nodes[1], nodes[0], lambda n: n)) is None
