from __future__ import annotations

import gc

import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest

from coreai_onnx.errors import PassError, SpecViolationError
from coreai_onnx.passes import ORDER, Pass, runner
from coreai_onnx.passes.cleanup.remove_noops import remove_identities
from coreai_onnx.passes.engine.why import Why
from coreai_onnx.passes.runner import MAX_ROUNDS
from tests.passes.rewriting import parse, run_passes, same_bytes, shown

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


def test_a_pass_that_gives_a_call_another_attribute_than_its_body_is_named() -> None:
    model = parse(TEXT)
    (function,) = model.functions.values()
    function.metadata_props["coreai.fixed_attributes"] = '{"is_causal": 0}'
    function.attributes["is_causal"] = ir.AttrInt64("is_causal", 0)

    def makes_causal(graph: gs.Graph, why: Why) -> int:
        calls = [node for node in graph.nodes if node.op == "f" and not node.attrs]
        for node in calls:
            node.attrs["is_causal"] = 1
        return len(calls)

    with pytest.raises(PassError, match="pass makes_causal on main left an invalid node") as error:
        run_passes(model, [remove_identities, makes_causal])
    assert "has is_causal = 1, its body is for 0" in str(error.value)
    assert (
        shown(model).count("Identity") == 1
    )  # as the pass before left it: not yet in the function


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


@pytest.mark.slow
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


def turning_neg_into(op: str, *more: int, **attributes: object) -> Pass:
    """A user's pass that leaves a node of another op, with further graph inputs."""

    def wrong(graph: gs.Graph, why: Why) -> int:
        nodes = [node for node in graph.nodes if node.op == "Neg" and graph.name == "main"]
        for node in nodes:
            node.op = op
            node.attrs.update(attributes)
            node.inputs.extend(graph.inputs[i] for i in more)
        return len(nodes)

    return wrong


INVALID = """main (float[n] x, int64[n] i) => (float[n] y) {
  a = Identity (x)  b = Neg (a)  c = Identity (b)  y = Abs (c) }"""


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (turning_neg_into("Nonsense"), "Nonsense, node 'neg', at opset 23: No Op registered"),
        (turning_neg_into("Conv"), "Conv, node 'neg', at opset 23: schema"),
        (turning_neg_into("Softmax", axis=1.5), "Mismatched attribute type in 'axis'"),
        (turning_neg_into("Add", 1), r"Add\(float\[n\], int64\[n\]\), node 'neg', at opset 23: B has"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", [1, 12])
def test_a_pass_that_leaves_an_invalid_node_is_refused(wrong: Pass, what: str, before: int) -> None:
    """Whichever passes run before and after it, and though these may fail on that node first."""
    model, good = parse(INVALID), parse(INVALID)
    for one in (model, good):
        one.graph[1].name = "neg"
        one.graph[1].metadata_props.update({"coreai.scope": "mlp", "coreai.source": "m.py:3"})
    ahead = (remove_identities, *ORDER)[:before]
    with pytest.raises(
        SpecViolationError, match=rf"pass wrong on main left an invalid node\n.*{what}"
    ) as error:
        run_passes(model, [*ahead, wrong, *ORDER])
    assert "\n  at mlp   m.py:3\n  the model is as the passes before left it" in str(error.value)
    run_passes(good, ahead[:1])
    assert [node.op_type for node in model.graph] == [node.op_type for node in good.graph]


def test_an_invalid_node_in_a_function_is_refused() -> None:
    def wrong(graph: gs.Graph, why: Why) -> int:
        if not isinstance(graph, gs.Function) or graph.nodes[-1].op != "Neg":
            return 0
        graph.nodes[-1].op = "Not"
        return 1

    with pytest.raises(SpecViolationError, match=r"wrong on ai.coreai::f left .*\n  Not\(float\["):
        run_passes(parse(TEXT), [wrong])


def test_a_model_that_was_invalid_before_is_not_blamed_on_a_pass() -> None:
    text = "main (float[n] x, int64[n] i) => (float[n] y) { a = Identity (x)  y = Add (a, i) }"
    model = parse(text)
    assert run_passes(model, [remove_identities]).total == 1
    with pytest.raises(SpecViolationError, match="Nonsense"):
        run_passes(
            parse(text.replace("Add (a, i)", "Add (b, i)  b = Neg (a)")),
            [turning_neg_into("Nonsense")],
        )


def test_a_graph_that_is_broken_by_a_pass_that_says_nothing_is_blamed_on_it() -> None:
    def silent(graph: gs.Graph, why: Why) -> int:
        if graph.name == "main":
            graph.nodes[-1].outputs[0].inputs.clear()
        return 0

    with pytest.raises(PassError, match="pass silent broke main"):
        run_passes(parse(INVALID), [silent, remove_identities, *ORDER])


def checked_graphs(model: ir.Model, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many nodes the runner looks at to see whether graphs are whole."""
    seen = 0
    check = runner.check

    def counting(root: gs.Graph, interface: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
        nonlocal seen
        seen += len(root.nodes)
        check(root, interface)

    monkeypatch.setattr(runner, "check", counting)
    run_passes(model)
    monkeypatch.undo()
    return seen


def test_graphs_are_looked_at_after_changes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = "".join(f"  v{i + 1} = Tanh (v{i})" for i in range(50))
    model = parse(f"main (float[n] v0) => (float[n] y) {{{nodes}  y = Neg (v50) }}")
    assert checked_graphs(model, monkeypatch) == 51


def test_no_passes_do_nothing() -> None:
    assert run_passes(parse(TEXT), []).total == 0


def test_a_bad_pass_is_found_in_one_more_run() -> None:
    runs = 0

    def counting(graph: gs.Graph, why: Why) -> int:
        nonlocal runs
        runs += graph.name == "main"
        return 0

    run_passes(parse(INVALID), [counting, *ORDER])
    valid, runs = runs, 0
    ahead = [counting, *ORDER, *ORDER]
    with pytest.raises(SpecViolationError, match="pass wrong on main left an invalid node"):
        run_passes(parse(INVALID), [*ahead, turning_neg_into("Nonsense"), *ORDER, *ORDER])
    assert runs <= 2 * valid + 1


def test_a_model_kept_after_a_bad_pass_has_no_types_in_its_functions() -> None:
    """Types in bodies are those of the calls, and only the passes may see them."""
    text = """<ir_version: 10, opset_import: ["": 23, "ai.coreai.module": 1]>
    main (float[2, n] x) => (float[2, n] y) { y = ai.coreai.module.f (x) }
    <domain: "ai.coreai.module", opset_import: ["": 23]>
    f (x) => (y) { i = Identity (x)  a = Neg (i)  y = Abs (a) }
    """

    def wrong(graph: gs.Graph, why: Why) -> int:
        found = [node for node in graph.nodes if node.op == "Abs"]
        for node in found:
            assert node.inputs[0].shape == [2, "n"]
            node.op = "Nonsense"
        return len(found)

    model, good = parse(text), parse(text)
    with pytest.raises(SpecViolationError, match=r"pass wrong on ai\.coreai\.module::f"):
        run_passes(model, [remove_identities, wrong])
    run_passes(good, [remove_identities])
    assert same_bytes(model, good)
