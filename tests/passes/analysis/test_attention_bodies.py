"""Tests of what function bodies compute: attention, and constants that calls pass."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from coreai_onnx.bodies.pass_bodies import write_pass_body
from coreai_onnx.passes.analysis.attention_bodies import (
    NAME,
    attention_without_mask,
    constants_behind,
    shares_heads,
)
from coreai_onnx.passes.engine.bodies import Bodies
from coreai_onnx.passes.engine.surgeon import open_model
from coreai_onnx.passes.engine.why import Why
from tests.passes.rewriting import parse, run_passes

MAIN = "main ({kind}[b, 4, s, 8] q, {kind}[b, {k}, s, 8] k, {kind}[b, {v}, s, 8] v, bool[s, s] m) => ({kind}[b, 4, s, 8] y) {{ y = ai.coreai.attend (q, k, v, m) }}"
FUNCTION = '\n<domain: "ai.coreai", opset_import: ["": 23]>\n'
MASKED = f"{FUNCTION}{NAME} (query, key, value, mask) => (output) {{ output = Attention (query, key, value, mask) }}"
PLAIN = f"{FUNCTION}{NAME} <scale> (query, key, value) => (output) {{ output = Attention <is_causal = 0, scale: float = @scale> (query, key, value) }}"
CAUSAL = PLAIN.replace("is_causal = 0", "is_causal = 1")
OTHER = PLAIN.replace("is_causal = 0", "softcap = 2.0")
NAMED = f"{NAME}.causal_upper_left"


def opened(functions: str, kind: str = "float", k: int = 2, v: int = 2):
    return open_model(parse(MAIN.format(kind=kind, k=k, v=v) + functions))


def provided(functions: str, *, causal: bool, kind: str = "float") -> tuple[str | None, set[str]]:
    graph = opened(functions, kind)
    name = attention_without_mask(
        Bodies(graph, write_pass_body), graph.nodes[0], "mask", causal=causal
    )
    return name, {function.name for function in graph.functions}


@pytest.mark.parametrize(
    ("functions", "causal", "name", "there"),
    [
        ("", False, NAME, {NAME}),
        ("", True, NAME, {NAME}),
        (MASKED, True, NAME, {NAME, f"{NAME}.mask"}),
        (PLAIN, True, NAMED, {NAME, NAMED}),
        (PLAIN, False, NAME, {NAME}),
        (CAUSAL, True, NAME, {NAME}),
        (CAUSAL, False, None, {NAME}),
        (OTHER, False, None, {NAME}),
        (
            MASKED + MASKED.replace(f"\n{NAME}", "\nother"),
            False,
            NAME,
            {NAME, f"{NAME}.mask", "other"},
        ),
    ],
)
def test_the_name_is_that_of_an_equal_body_or_free(functions, causal, name, there) -> None:
    assert provided(functions, causal=causal) == (name, there)


def test_another_dtype_has_a_body_of_its_own() -> None:
    name = f"{NAME}.float16"
    assert provided(PLAIN, causal=False, kind="float16") == (name, {NAME, name})


@pytest.mark.parametrize(("key", "value"), [(2, 2), (4, 2), ("n", "n"), ("n", "m")])
def test_heads_are_shared_if_their_numbers_are_equal(key, value) -> None:
    assert shares_heads(opened("", k=key, v=value).nodes[0]) == (key == value)


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
