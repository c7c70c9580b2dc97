"""The graphs of passes: names, fields, and objects that a pass took from graph-surgeon itself."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon
import pytest

from coreai_onnx.passes import open_model
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.graphs import (
    UniqueNames,
    adopt_objects,
    attribute_graphs,
    context_of,
    origin_of,
    with_subgraphs,
)
from coreai_onnx.passes.order import ORDER
from tests.passes.rewriting import main_text, parse, run_passes

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
        context_of(onnx_graphsurgeon.Graph(name="own"))


def test_new_constants_go_to_the_root() -> None:
    graph = open_model(parse(TEXT))
    inner = attribute_graphs(graph.nodes[0])[0]
    new = onnx_graphsurgeon.Constant("new", np.ones(2, np.float32))
    inner.nodes[0].inputs[0] = new
    adopt_objects(graph)
    adopt_objects(graph)
    assert [c.name for c in context_of(graph).constants] == ["new"]
    assert inner.constants == []


def test_tensors_and_nodes_are_equal_only_to_themselves() -> None:
    for first, second in (
        (gs.Variable("x"), gs.Variable("x")),
        (gs.Constant("c", np.zeros(2)), gs.Constant("c", np.zeros(2))),
        (gs.Node("Neg", "n"), gs.Node("Neg", "n")),
    ):
        assert first != second
        assert {first: 1, second: 2}[first] == 1


def test_a_variable_that_becomes_a_constant_keeps_its_class_of_the_engine() -> None:
    variable = open_model(parse(TEXT)).inputs[1]
    origin = variable.origin
    assert origin is not None
    constant = variable.to_constant(np.ones(2, np.float32))
    assert constant is variable
    assert type(constant) is gs.Constant
    assert (constant.origin, constant.weight, constant.node) == (origin, None, None)
    constant.__class__ = gs.Constant
    assert isinstance(gs.Variable.empty(), gs.Variable)


def test_objects_of_graph_surgeon_become_those_of_the_engine() -> None:
    graph = open_model(parse(TEXT))
    x, plain = graph.inputs[1], onnx_graphsurgeon
    (t,), (absent,) = [plain.Variable("made", np.float32, [2])], [plain.Variable.empty()]
    inner = plain.Node("Clip", "clip", {}, [x, absent], [t])
    branch = plain.Graph([inner], [], [t], name="branch")
    node = graph.nodes[0]
    node.attrs["then_branch"] = branch
    assert origin_of(inner) is None
    adopt_objects(graph)
    assert isinstance(branch, gs.Graph)
    assert (branch.kind, branch.source, branch.constants) == ("subgraph", None, [])
    assert branch.names is graph.names
    assert [type(one) for one in (inner, t, absent)] == [gs.Node, gs.Variable, gs.Variable]
    assert (inner.origin, inner.position, t.origin) == (None, -1, None)


def test_the_passes_run_on_what_a_pass_takes_from_graph_surgeon() -> None:
    """It reports no change, as a pass of a user may."""

    def rewrites(graph, why) -> int:
        plain = onnx_graphsurgeon
        if graph.name != "main" or graph.nodes[-1].op == "If":
            return 0
        (y,), x = graph.outputs, graph.inputs[1]
        branches = {}
        for key, op in (("then_branch", "Neg"), ("else_branch", "Abs")):
            result = plain.Variable(f"{op}_result", np.float32, [2])
            zero = plain.Constant(f"{op}_zero", np.zeros((), np.int64))
            whole = plain.Variable(f"{op}_sum", np.int64, [2])
            sizes = plain.Variable(f"{op}_sizes", np.int64, [2])
            nodes = [
                plain.Node(op, op, {}, [x], [result]),
                plain.Node("Cast", f"{op}_cast", {"to": 7}, [result], [sizes]),
                plain.Node("Add", f"{op}_add", {}, [sizes, zero], [whole]),
            ]
            last = plain.Variable(f"{op}_last", np.float32, [2])
            nodes.append(plain.Node("Cast", f"{op}_back", {"to": 1}, [whole], [last]))
            branches[key] = plain.Graph(nodes, [], [last], name=op)
        graph.nodes[0].outputs.clear()
        graph.nodes[:] = [plain.Node("If", "branches", branches, [graph.inputs[0]], [y])]
        return 0

    model = parse("main (bool c, float[2] x) => (float[2] y) { y = Exp (x) }")
    report = run_passes(model, [rewrites, *ORDER])
    assert report.counts["remove_neutral_operands"] == 2
    assert "If" in main_text(model)
    assert "Add" not in main_text(model)
