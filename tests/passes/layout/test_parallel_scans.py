"""Steps of a Scan at once: what they read, and the scans of which they cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.layout.running_maxima import running_maxima
from tests.passes.rewriting import leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

STEP = "a = Add (s, c)  next = Max (a, x)"


def scan(step: str, *, state: str = "float[b, 3]", results: str = "float[t, b, 3] y") -> str:
    element, _, dims = state.partition("[")
    return f"""main ({state} s0, {element}[t, {dims} xs) => ({state} last, {results})
      <{element}[3] c = {{-1, 0, -2}}> {{
      last, y = Scan <num_scan_inputs = 1, body = step ({state} s, {state} x)
        => ({state} next, {state} out) {{ {step} }}> (s0, xs)
    }}"""


def test_what_is_equal_in_all_steps_is_computed_once() -> None:
    text = scan(f"{STEP}  rate = Exp (c)  out = Mul (rate, next)")
    model = parse(text, 18)
    assert run_passes(model, [running_maxima]).total == 1
    shapes = [node.outputs[0].name for node in model.graph if node.op_type == "Exp"]
    assert len(shapes) == 1
    random = np.random.default_rng(0)
    given = {
        "s0": random.standard_normal((2, 3)).astype(np.float32),
        "xs": random.standard_normal((4, 2, 3)).astype(np.float32),
    }
    assert_close(run(model, given), run(parse(text, 18), given))


def test_axes_of_what_is_equal_in_all_steps_stay_if_it_is_read_twice() -> None:
    step = "rate = Exp (c)  first = Mul (rate, next)  total = ReduceSum <keepdims = 1> (rate, zero)"
    text = scan(f"{STEP}  {step}  out = Mul (first, total)").replace(
        "<float", "<int64[1] zero = {0}, float"
    )
    model = parse(text, 18)
    assert run_passes(model, [running_maxima]).total == 1
    random = np.random.default_rng(0)
    given = {
        "s0": random.standard_normal((2, 3)).astype(np.float32),
        "xs": random.standard_normal((4, 2, 3)).astype(np.float32),
    }
    assert_close(run(model, given), run(parse(text, 18), given))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            scan(f"{STEP}  out = Neg (s)", state="double[b, 3]", results="double[t, b, 3] y"),
            "its state is not float32",
        ),
        (
            scan(f"{STEP}  out = Neg (s)", state="float[b, n]"),
            "the dims of its state are not known",
        ),
        (
            scan(
                f"{STEP}  axes = Shape (c)  out = ReduceSum <keepdims = 1> (next, axes)",
                results="float[t, b, n] y",
            ),
            "a step has Shape",
        ),
        (
            scan(f"{STEP}  out = Neg (c)", results="float[t, 3] y").replace(
                "(float[b, 3] next, float[b, 3] out)", "(float[b, 3] next, float[3] out)"
            ),
            "a result is equal in all steps",
        ),
        (
            """main (float[b, 3] s0, float[b, 3] r0, float[t, b, 3] xs) => (float[b, 3] last)
              <float[3] c = {-1, 0, -2}> {
              last, other = Scan <num_scan_inputs = 1, body = step
                (float[b, 3] s, float[b, 3] r, float[b, 3] x)
                => (float[b, 3] next, float[b, 3] out) {
                a = Add (s, c)  next = Max (a, x)  out = Neg (r) }> (s0, r0, xs)
            }""",
            "it has 2 states",
        ),
    ],
)
def test_scans_whose_steps_are_computed_one_by_one(text: str, reason: str) -> None:
    leaves(text, running_maxima, reason, opset=18)
