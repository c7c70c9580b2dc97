from __future__ import annotations

import gc

import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest

from coreai_onnx.errors import PassError
from coreai_onnx.passes import ORDER, run_passes
from coreai_onnx.passes.remove_identities import remove_identities
from coreai_onnx.passes.runner import MAX_ROUNDS
from tests.passes.rewriting import parse, same_bytes, shown

TEXT = """<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>
main (bool c, float[n] x) => (float[n] y) {
  i = Identity (x)
  z = If (c) <then_branch = p () => (float[n] t) { j = Identity (i)  t = ai.coreai.f (j) },
              else_branch = q () => (float[n] e) { e = Abs (x) }>
  y = Neg (z)
}
<domain: "ai.coreai", opset_import: ["": 23]>
f (x) => (y) { k = Identity (x)  y = Neg (k) }
"""


def test_main_graph_subgraphs_and_functions_are_done() -> None:
    model = parse(TEXT)
    seen = []
    report = run_passes(model, [remove_identities], progress=lambda *step: seen.append(step))
    assert report.counts == {"remove_identities": 3}
    assert (report.nodes_before, report.nodes_after, report.rounds) == (8, 5, 2)
    assert "Identity" not in shown(model)
    assert seen[0] == ("main", "remove_identities", 1)
    assert ("ai.coreai::f", "remove_identities", 1) in seen


def test_a_model_that_needs_nothing_keeps_its_objects() -> None:
    model = parse("main (float[n] x) => (float[n] y) { y = Neg (x) }")
    graph, node = model.graph, model.graph[0]
    assert run_passes(model).total == 0
    assert model.graph is graph
    assert model.graph[0] is node


def broken(graph: gs.Graph, why) -> int:
    """Break the last graph it sees, after others were changed."""
    if isinstance(graph, gs.Function):
        graph.nodes[0].outputs[0].name = graph.inputs[0].name
    return 0


def raising(graph: gs.Graph, why) -> int:
    raise ValueError("no good")


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (broken, "pass broken broke ai.coreai::f: inputs and outputs were"),
        (raising, "pass raising raised on main: ValueError: no good"),
    ],
)
def test_a_bad_pass_is_named_and_the_last_good_model_stays(one, message) -> None:
    model, good = parse(TEXT), parse(TEXT)
    with pytest.raises(PassError, match=message):
        run_passes(model, [remove_identities, one])
    run_passes(good, [remove_identities])
    if one is raising:  # at once, before the function was reached
        assert "Identity" not in shown(model).partition("<\n  domain")[0]
        assert len(model.graph) == len(good.graph)
    else:
        assert same_bytes(model, good)


def test_a_bad_first_pass_changes_nothing() -> None:
    model = parse(TEXT)
    graph = model.graph
    with pytest.raises(PassError, match="pass raising raised"):
        run_passes(model, [raising, remove_identities])
    assert model.graph is graph


def test_a_pass_that_drops_an_output_is_caught() -> None:
    def dropping(graph: gs.Graph, why) -> int:
        graph.outputs.clear()
        return 1

    model = parse(TEXT)
    with pytest.raises(PassError, match="pass dropping broke main: inputs and outputs were"):
        run_passes(model, [dropping])
    assert same_bytes(model, parse(TEXT))


def test_passes_that_undo_each_other_are_an_error() -> None:
    def flip(graph: gs.Graph, why) -> int:
        return 1

    with pytest.raises(PassError, match=f"still change main after {MAX_ROUNDS} rounds"):
        run_passes(parse(TEXT), [flip])


def test_a_users_own_pass_may_use_graph_surgeon_directly() -> None:
    def double(graph: gs.Graph, why) -> int:
        if graph.name != "main" or any(n.op == "Add" for n in graph.nodes):
            return 0
        (last,) = [n for n in graph.nodes if n.op == "Neg"]
        middle = gs.Variable("middle")
        output = last.outputs[0]
        last.outputs[0] = middle
        graph.nodes.insert(0, gs.Node("Add", "add", {}, [middle, middle], [output]))
        return 1

    model = parse(TEXT)
    report = run_passes(model, [double, *ORDER])
    assert report.counts["double"] == 1
    assert [n.op_type for n in model.graph] == ["If", "Neg", "Add"]  # sorted


def test_near_misses_are_those_of_the_final_graph() -> None:
    model = parse(
        "main (float[n] x) => (float[n] y, float[n] z) { a = Identity (x)  y = Identity (a)  z = Neg (x) }"
    )
    report = run_passes(model)
    (miss,) = report.near_misses
    assert (miss.pass_name, miss.scope, miss.miss.reason, miss.miss.count) == (
        "remove_identities", "main", "it names a graph output", 1,
    )  # fmt: skip


def test_results_do_not_depend_on_addresses() -> None:
    """Same input, same bytes, although objects lie elsewhere each time."""
    results = set()
    ballast = []
    for round_ in range(4):
        ballast.append([object() for _ in range(1000 * round_)])
        gc.collect()
        model = parse(TEXT)
        run_passes(model)
        results.add(ir.to_proto(model).SerializeToString(deterministic=True))
    assert len(results) == 1
