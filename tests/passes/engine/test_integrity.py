from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from coreai_onnx.bodies.pass_bodies import write_pass_body
from coreai_onnx.errors import SpecViolationError
from coreai_onnx.passes import open_model
from coreai_onnx.passes.cleanup.remove_noops import remove_identities
from coreai_onnx.passes.engine.bodies import Bodies
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.integrity import BrokenGraphError, check, interface_of, too_new
from coreai_onnx.passes.engine.why import Why
from tests.passes.rewriting import parse, run_passes

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


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "opset", "fits"),
    [
        ("Unsqueeze", 2, {}, 13, True),
        ("Unsqueeze", 2, {}, 12, False),
        ("Shape", 1, {"start": 0}, 15, True),
        ("Shape", 1, {"start": 0}, 14, False),
        ("Gelu", 1, {}, 19, False),
    ],
)
def test_what_an_opset_has(
    op: str, inputs: int, attrs: dict[str, int], opset: int, fits: bool
) -> None:
    graph = opened()
    assert too_new(graph, 1) == ""
    given = [gs.Variable(f"v{i}") for i in range(inputs)]
    graph.nodes.append(gs.Node(op, "new", attrs, given, [gs.Variable("made")]))
    assert too_new(graph, opset) == ("" if fits else f"{op} with {inputs} inputs")


@pytest.mark.parametrize("opset", [11, 13])
def test_a_pass_that_writes_what_an_old_opset_lacks_is_left_out(
    opset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsqueezes(graph: gs.Graph, why: Why) -> int:
        edit, count = Edit(graph), 0
        for node in graph.nodes:
            if node.op == "Neg":
                axes = edit.constant("axes", np.array([0]))
                edit.become(node, "Unsqueeze", [node.inputs[0], axes])
                count += 1
        edit.finish()
        return count

    text = "main (float[2] x) => (float[1, 2] y) { a = Identity (x)  y = Neg (a) }"
    if opset == 11:  # a user's pass is not left out in silence
        with pytest.raises(SpecViolationError, match="pass unsqueezes"):
            run_passes(parse(text, opset), (remove_identities, unsqueezes))
    monkeypatch.setattr(unsqueezes, "__module__", "coreai_onnx.passes.unsqueezes")
    model = parse(text, opset)
    report = run_passes(model, (remove_identities, unsqueezes))
    ops = [node.op_type for node in model.graph]
    assert ops == (["Unsqueeze"] if opset == 13 else ["Neg"])
    assert report.total == (2 if opset == 13 else 1)


def test_a_model_too_old_for_functions_gets_none() -> None:
    text = """<ir_version: VERSION, opset_import: ["": 21]>
    main (float[2, 8] x) => (float[2, 8] y) { s = Sigmoid (x)  y = Mul (x, s) }"""
    for version, functions in ((7, 0), (10, 1)):
        graph = open_model(parse(text.replace("VERSION", str(version))))
        name = Bodies(graph, write_pass_body).provide_composite("swiglu", np.dtype(np.float32))
        assert len(graph.functions) == functions
        assert name == ("swiglu" if functions else None)
