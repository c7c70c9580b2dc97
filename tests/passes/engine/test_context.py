from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from coreai_onnx.passes import open_model
from coreai_onnx.passes.engine.context import (
    UniqueNames,
    adopt_constants,
    attribute_graphs,
    context_of,
    with_subgraphs,
)
from tests.passes.rewriting import parse

TEXT = """main (bool c, float[2] x) => (float[2] y) {
  y = If (c) <then_branch = p () => (float[2] t) { t = Neg (x) }, else_branch = q () => (float[2] e) { e = Abs (x) }>
}"""


def test_names_are_handed_out_once() -> None:
    names = UniqueNames()
    assert [names.claim(n) for n in ("a", "a", "a_1", "a", "b")] == [
        "a",
        "a_1",
        "a_1_1",
        "a_2",
        "b",
    ]


def test_scopes_and_subgraphs() -> None:
    graph = open_model(parse(TEXT))
    found = list(with_subgraphs(graph))
    assert [g.name for g in found] == ["main", "p", "q"]
    assert [context_of(g).kind for g in found] == ["main", "subgraph", "subgraph"]
    assert len({id(context_of(g).names) for g in found}) == 1
    assert len(attribute_graphs(graph.nodes[0])) == 2
    with pytest.raises(LookupError, match="did not come through"):
        context_of(gs.Graph(name="own"))


def test_new_constants_go_to_the_root() -> None:
    graph = open_model(parse(TEXT))
    inner = attribute_graphs(graph.nodes[0])[0]
    new = gs.Constant("new", np.ones(2, np.float32))
    inner.nodes[0].inputs[0] = new
    adopt_constants(graph)
    adopt_constants(graph)
    assert [c.name for c in context_of(graph).constants] == ["new"]
