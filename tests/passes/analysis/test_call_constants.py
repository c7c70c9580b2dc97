"""Constants behind a tensor: itself, or what the calls of its function pass."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from coreai_onnx.passes import run_passes
from coreai_onnx.passes.analysis.call_constants import constants_behind
from coreai_onnx.passes.engine.why import Why
from tests.passes.rewriting import parse

HEAD = '<ir_version: 10, opset_import: ["": 23, "u": 1]>'
INNER = """
<domain: "u", opset_import: ["": 23, "u": 1]> outer (x, w) => (y) { y = u.inner (x, w) }
<domain: "u", opset_import: ["": 23]> inner (x, w) => (y) { y = Add (x, w) }
"""


def found(text: str) -> list[float] | None:
    """Return the values of the constants behind the second factor of the only Add."""
    seen: list[list[gs.Constant] | None] = []

    def look(graph: gs.Graph, _why: Why) -> int:
        seen.extend(constants_behind(graph, n.inputs[1]) for n in graph.nodes if n.op == "Add")
        return 0

    run_passes(parse(HEAD + text), [look])
    (constants,) = seen
    return None if constants is None else [float(np.asarray(c.values)) for c in constants]


def test_a_constant_of_the_graph() -> None:
    assert found("main (float x) => (float y) <float a = {2}> { y = Add (x, a) }") == [2]
    assert found("main (float x, float a) => (float y) { y = Add (x, a) }") is None
    assert found("main (float x) => (float y) { a = Neg (x)  y = Add (x, a) }") is None


def test_arguments_of_all_calls_through_functions() -> None:
    calls = "main (float x) => (float y) <float a = {2}, float b = {3}>"
    body = "{ z = u.outer (x, a)  t = u.inner (z, b)  y = u.outer (t, a) }"
    assert sorted(found(calls + body + INNER) or []) == [2, 3]


def test_one_call_that_passes_something_else() -> None:
    calls = "main (float x) => (float y) <float a = {2}> "
    assert found(calls + "{ z = u.outer (x, a)  y = u.inner (z, x) }" + INNER) is None
