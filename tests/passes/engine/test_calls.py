from __future__ import annotations

from unittest.mock import patch

import onnx_graphsurgeon as gs

from coreai_onnx.passes import open_model
from coreai_onnx.passes.engine import calls
from coreai_onnx.passes.engine.calls import CallIndex, sorted_callers_first
from coreai_onnx.passes.engine.graphs import with_subgraphs
from tests.passes.rewriting import parse, run_passes

HEAD = '<ir_version: 10, opset_import: ["": 23, "d": 1]>\n'
MAIN = "main (float[n] x) => (float[n] y) { a = d.f (x)  b = d.g (a)  y = d.f (b) }\n"
FUNCTION = '<domain: "d", opset_import: ["": 23, "d": 1]> '
BODIES = ("g (x) => (y) { a = d.f (x)  y = Neg (a) }", "f (x) => (y) { y = Abs (x) }")


def opened(main: str = MAIN, bodies: tuple[str, ...] = BODIES) -> gs.Graph:
    return open_model(parse(HEAD + main + "\n".join(FUNCTION + body for body in bodies)))


def test_calls_are_found_in_the_order_of_the_roots() -> None:
    main = opened()
    index, roots = CallIndex(), (main, *main.functions)
    assert [node.outputs[0].name for node in index.of(("d", "f"), roots)] == ["a", "y", "a"]
    assert [node.outputs[0].name for node in index.of(("d", "g"), roots)] == ["b"]
    assert index.of(("d", "h"), roots) == []


def test_a_root_that_changed_is_read_again() -> None:
    main = opened()
    index, roots = CallIndex(), (main, *main.functions)
    assert len(index.of(("d", "f"), roots)) == 3
    main.nodes[0].op = "g"
    index.changed(main)
    assert [node.outputs[0].name for node in index.of(("d", "f"), roots)] == ["y", "a"]
    assert [node.outputs[0].name for node in index.of(("d", "g"), roots)] == ["a", "b"]
    assert len(index.of(("d", "f"), roots[:1])) == 1  # functions that were removed call nothing


def test_functions_come_after_those_that_call_them() -> None:
    bodies = (
        "c (x) => (y) { y = Abs (x) }",
        "b (x) => (y) { y = d.c (x) }",
        "a (x) => (y) { a = d.b (x)  y = d.c (a) }",
        "e (x) => (y) { y = Neg (x) }",
    )
    functions = opened(bodies=bodies).functions
    assert [one.name for one in sorted_callers_first(functions)] == ["a", "b", "c", "e"]


def test_functions_in_a_circle_come_in_their_order() -> None:
    bodies = ("a (x) => (y) { y = d.b (x) }", "b (x) => (y) { y = d.a (x) }")
    assert [one.name for one in sorted_callers_first(opened(bodies=bodies).functions)] == ["a", "b"]


def graphs_read(depth: int) -> int:
    """How many graphs are searched for calls while a chain of functions is optimized."""
    bodies = [f"f{i} (x) => (y) {{ a = d.f{i + 1} (x)  y = Neg (a) }}" for i in range(depth)]
    text = "main (float[n] x) => (float[n] y) { y = d.f0 (x) }\n"
    last = f"f{depth} (x) => (y) {{ y = Neg (x) }}"
    model = parse(HEAD + text + "\n".join(FUNCTION + body for body in (*bodies, last)))
    with patch.object(calls, "with_subgraphs", wraps=with_subgraphs) as counted:
        run_passes(model)
    return counted.call_count


def test_calls_are_searched_for_in_linear_time() -> None:
    assert graphs_read(80) < 2.5 * graphs_read(40)
