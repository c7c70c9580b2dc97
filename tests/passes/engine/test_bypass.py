from __future__ import annotations

import onnx_graphsurgeon as gs

from coreai_onnx.passes import open_model
from coreai_onnx.passes.engine.bypass import bypass_nodes
from coreai_onnx.passes.engine.why import Why
from tests.passes.rewriting import parse

TEXT = """main (float[n] x, float[n] w) => (float[n] y, float[n] z) {
  a = Add (x, w)  b = Neg (a)  c = ai.coreai.Add (b, w)  d = Add (c, x)  y = Abs (d)  z = Add (x, w) }"""


def is_noop(node: gs.Node, why: Why) -> bool:
    return node.name != "kept" or why("it is kept", node)


def test_noops_of_the_ops_are_removed() -> None:
    graph, why = open_model(parse(TEXT)), Why()
    assert bypass_nodes(graph, why, ("Add",), is_noop) == 2
    assert [(n.op, [t.name for t in n.inputs]) for n in graph.nodes] == [
        ("Neg", ["x"]), ("Add", ["b", "w"]), ("Abs", ["c"]), ("Add", ["x", "w"]),
    ]  # fmt: skip
    assert [(m.reason, m.count) for m in why.misses] == [("it names a graph output", 1)]


def test_another_input_may_be_the_source() -> None:
    graph = open_model(parse(TEXT))
    bypass_nodes(graph, Why(), ("Add",), is_noop, lambda node: node.inputs[1])
    assert graph.nodes[0].inputs[0].name == "w"


def test_the_reason_of_the_predicate_is_kept() -> None:
    graph, why = open_model(parse(TEXT)), Why()
    for node in graph.nodes:
        node.name = "kept"
    assert bypass_nodes(graph, why, ("Add",), is_noop) == 0
    assert [(m.reason, m.count) for m in why.misses] == [("it is kept", 3)]
