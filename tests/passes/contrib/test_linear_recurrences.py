"""Recurrences by onnxruntime's LinearAttention: the same numbers, and loops that stay."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.passes.cleanup.remove_unused import remove_dead_code
from coreai_onnx.passes.contrib.linear_recurrences import contrib_linear_recurrences
from tests.passes.rewriting import leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

SIZES = {"s0": ("b", 3, 4), "xs": ("t", "b", 3, 4), "gs": ("t", "b", 3, 1), "qs": ("t", "b", 4)}
TYPES = "float[4] half = {0.5, 0.25, 0, 1}, float[t, b, 3, 1] rate, bool[t, b, 3, 1] positive"
RESULTS = "float[b, 3, 4] last, float[t, b, 3, m] y"


def scan(step: str, *, before: str = "", rate: str = "gs", options: str = "") -> str:
    """A scan over x, a factor and a query, whose step is given."""
    given = ", ".join(f"float[{', '.join(map(str, d))}] {n}" for n, d in SIZES.items())
    return f"""main ({given}) => ({RESULTS}) <{TYPES}> {{
      {before}
      last, y = Scan <num_scan_inputs = 3 {options}, body = step (
        float[b, 3, 4] s, float[b, 3, 4] x, float[b, 3, 1] g, float[b, 4] q
      ) => (float[b, 3, 4] next, float[b, 3, m] out) {{ {step} }}> (s0, xs, {rate}, qs)
    }}"""


def feeds(batch: int, steps: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(steps)
    dims = {"b": batch, "t": steps}
    return {
        name: random.standard_normal([dims.get(str(d), d) for d in shape]).astype(np.float32)
        for name, shape in SIZES.items()
    }


EXP = "rate = Exp (gs)"
FLAGS = """zero = Constant <value = float {0.0}> ()
  positive = Greater (gs, zero)  kept = Cast <to = 1> (positive)
  grown = Exp (gs)  rate = Mul (grown, kept)"""
STATES = "a = Mul (s, g)  next = Add (a, x)"


@pytest.mark.parametrize(
    ("step", "before", "rate"),
    [
        (f"{STATES}  out = Identity (next)", EXP, "rate"),
        (f"{STATES}  out = Tanh (s)", EXP, "rate"),
        (f"{STATES}  out = Neg (next)", FLAGS, "rate"),
        # Each element of the state has a factor of its own, which a step computes.
        (
            """z = Mul (g, x)  r = Exp (z)
               a = Mul (r, s)  next = Add (x, a)  out = Mul (next, g)""",
            "",
            "gs",
        ),
        ("a = Mul (s, half)  next = Add (a, x)  out = Add (s, g)", "", "gs"),
        # The state is read by a query.
        (
            f"""{STATES}  last_axis = Constant <value = int64[1] {{2}}> ()
               column = Unsqueeze (q, last_axis)  out = MatMul (next, column)""",
            EXP,
            "rate",
        ),
        (
            f"""{STATES}  middle = Constant <value = int64[1] {{1}}> ()
               row = Unsqueeze (q, middle)  read = Mul (s, row)
               axis = Constant <value = int64[1] {{-1}}> ()
               out = ReduceSum <keepdims = 1> (read, axis)""",
            EXP,
            "rate",
        ),
    ],
)
def test_recurrences_are_linear_attention(step: str, before: str, rate: str) -> None:
    text = scan(step, before=before, rate=rate)
    model = parse(text, 18)
    assert run_passes(model, [contrib_linear_recurrences, remove_dead_code]).total >= 1
    ops = [node.op_type for node in model.graph]
    assert ops.count("LinearAttention") == 1
    assert not {"Scan", "Log"} & set(ops)
    for batch, steps in ((2, 5), (1, 1)):
        given = feeds(batch, steps)
        assert_close(run(model, given), run(parse(text, 18), given))
    assert run_passes(model, [contrib_linear_recurrences]).total == 0


def test_the_axes_that_share_a_factor_are_the_values_of_a_head() -> None:
    heads = []
    for rate in ("Exp (g)", "Exp (x)"):
        step = f"r = {rate}  a = Mul (s, r)  next = Add (a, x)"
        model = parse(scan(f"{step}  out = Neg (next)"), 18)
        run_passes(model, [contrib_linear_recurrences])
        made = next(node for node in model.graph if node.op_type == "LinearAttention")
        heads.append(made.attributes["kv_num_heads"].as_int())
    assert heads == [3, 12]


def test_a_step_may_read_constants_of_the_graph() -> None:
    text = scan(f"{STATES}  out = Mul (next, half)", before=EXP, rate="rate")
    model = parse(text, 18)
    assert run_passes(model, [contrib_linear_recurrences]).total == 1
    assert_close(run(model, feeds(2, 3)), run(parse(text, 18), feeds(2, 3)))
    assert ir.to_proto(model).graph.node[-1].op_type == "Identity"


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (f"{STATES}  out = Identity (next)", "the factor of the state may be negative"),
        ("a = Mul (s, s)  next = Add (a, x)  out = Neg (s)", None),
        ("a = Tanh (s)  next = Add (a, x)  out = Neg (s)", None),
        ("next = Mul (s, g)  out = Neg (s)", None),
        (f"{STATES}  out = Softmax (next)", "a step has Softmax"),
        (f"{STATES}  out = Mul (next, q)", "a step adds axes to an operand"),
    ],
)
def test_other_recurrences_stay(step: str, reason: str | None) -> None:
    if reason is not None and "negative" not in reason:
        leaves(scan(step, before=EXP, rate="rate"), contrib_linear_recurrences, reason, opset=18)
    else:
        leaves(scan(step), contrib_linear_recurrences, reason, opset=18)


def test_reversed_scans_stay() -> None:
    text = scan(
        f"{STATES}  out = Neg (next)",
        before=EXP,
        rate="rate",
        options=", scan_input_directions = [1, 1, 1]",
    )
    reason = "its steps are not along the first axes, or reversed"
    leaves(text, contrib_linear_recurrences, reason, opset=18)
