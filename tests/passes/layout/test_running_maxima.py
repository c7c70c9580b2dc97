"""Running maxima without a loop: the same numbers for every length."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.layout.running_maxima import running_maxima
from tests.passes.rewriting import leaves, parse, run, run_passes
from tests.support.tolerances import assert_close


def scan(step: str, decay: str = "-0.5, 0, -3") -> str:
    return f"""main (float[b, 3] s0, float[t, b, 3] xs) => (float[b, 3] last, float[t, b, 3] y)
      <float[3] c = {{{decay}}}> {{
      last, y = Scan <num_scan_inputs = 1, body = step (float[b, 3] s, float[b, 3] x)
        => (float[b, 3] next, float[b, 3] out) {{ {step} }}> (s0, xs)
    }}"""


STEP = "a = Add (s, c)  next = Max (a, x)"


@pytest.mark.parametrize("steps", [1, 2, 3, 8, 37])
@pytest.mark.parametrize("result", ["out = Identity (s)", "out = Neg (next)"])
def test_maxima_of_all_steps(steps: int, result: str) -> None:
    text = scan(f"{STEP}  {result}")
    model = parse(text, 18)
    assert run_passes(model, [running_maxima]).total == 1
    assert "Scan" not in {node.op_type for node in model.graph}
    random = np.random.default_rng(steps)
    xs = 5 * random.standard_normal((steps, 2, 3)).astype(np.float32)
    for first in (np.zeros((2, 3), np.float32), np.full((2, 3), -1e38, np.float32)):
        given = {"s0": first, "xs": xs}
        assert_close(run(model, given), run(parse(text, 18), given))


def test_a_state_that_grows_stays() -> None:
    text = scan(f"{STEP}  out = Neg (s)", "-0.5, 0, 3")
    reason = "the number that each step adds is not a constant of at most 0"
    leaves(text, running_maxima, reason, opset=18)


def test_maxima_of_other_functions_stay() -> None:
    leaves(scan("a = Mul (s, c)  next = Max (a, x)  out = Neg (s)"), running_maxima, opset=18)
    leaves(scan("a = Add (s, c)  next = Min (a, x)  out = Neg (s)"), running_maxima, opset=18)
