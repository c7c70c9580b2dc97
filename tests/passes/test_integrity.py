from __future__ import annotations

import onnx_graphsurgeon as gs
import pytest

from coreai_onnx.passes import open_model
from coreai_onnx.passes.integrity import BrokenGraphError, check, interface_of
from tests.passes.rewriting import parse

TEXT = """main (bool c, float[2] x) => (float[2] y) {
  a = Neg (x)  b = Abs (a)
  z = If (c) <then_branch = p () => (float[2] t) { t = Neg (b) }, else_branch = q () => (float[2] e) { e = Abs (a) }>
  y = Exp (z)
}"""


def opened() -> gs.Graph:
    return open_model(parse(TEXT))


def fails(graph: gs.Graph, message: str) -> None:
    with pytest.raises(BrokenGraphError, match=message):
        check(graph, interface_of(opened()))


def test_a_whole_graph_passes_and_keeps_its_order() -> None:
    graph = opened()
    nodes = list(graph.nodes)
    check(graph, interface_of(graph))
    assert all(a is b for a, b in zip(graph.nodes, nodes, strict=True))


def test_nodes_are_sorted_also_before_a_subgraph_that_reads_them() -> None:
    graph = opened()
    a, b, branch, y = graph.nodes
    graph.nodes = [branch, y, b, a]
    check(graph, interface_of(graph))
    assert [n.op for n in graph.nodes] == ["Neg", "Abs", "If", "Exp"]
    assert graph.nodes[0] is a


def test_two_tensors_of_one_name() -> None:
    graph = opened()
    graph.nodes[0].outputs[0].name = "x"
    fails(graph, "two tensors are named 'x'")


def test_a_name_of_a_subgraph_counts() -> None:
    graph = opened()
    graph.nodes[2].attrs["then_branch"].nodes[0].outputs[0].name = "b"
    fails(graph, "two tensors are named 'b'")


def test_a_read_of_nothing() -> None:
    graph = opened()
    del graph.nodes[0]
    fails(graph, "Abs node '.*' reads 'a', which nothing produces")


def test_an_output_of_nothing() -> None:
    graph = opened()
    del graph.nodes[3]
    fails(graph, "graph output 'y' is produced by nothing")


def test_a_cycle() -> None:
    graph = opened()
    graph.nodes[0].inputs[0] = graph.nodes[1].outputs[0]
    fails(graph, "cycle through")


def test_two_producers() -> None:
    graph = opened()
    graph.nodes.append(gs.Node("Neg", "n", {}, [graph.inputs[1]], [graph.nodes[0].outputs[0]]))
    fails(graph, "'a' is produced by two nodes")


def test_a_changed_interface() -> None:
    graph = opened()
    graph.outputs.append(graph.nodes[0].outputs[0])
    fails(graph, "inputs and outputs were")
    graph = opened()
    graph.inputs[1].name = "other"
    fails(graph, "inputs and outputs were")


def test_a_produced_input_or_constant() -> None:
    graph = opened()
    graph.nodes[0].outputs[0] = graph.inputs[0]
    fails(graph, "graph input 'c' is produced by a node|reads 'a', which nothing produces")
