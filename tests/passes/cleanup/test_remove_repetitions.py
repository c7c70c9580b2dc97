from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.remove_repetitions import (
    remove_broadcast_expands,
    remove_expands_in_functions,
    remove_repeated_heads,
)
from tests.passes.rewriting import (
    fuses,
    leaves,
    parse,
    rewrite,
    run,
    run_passes,
    same_bytes,
    same_numbers,
)

TEXT = "main (float[1, s] x, float[{y}] y, int64[2] d) => (float[b, s] z) {{ float[b, s] e = Expand (x, d)  z = Add ({e}, y) }}"


def test_an_op_that_broadcasts_needs_no_expand() -> None:
    text = TEXT.format(y="b, s", e="e")
    rewrite(text, remove_broadcast_expands, 1, TEXT.format(y="b, s", e="x"))
    feeds = {"x": np.ones((1, 3), np.float32), "y": np.ones((2, 3), np.float32)}
    same_numbers(text, remove_broadcast_expands, {**feeds, "d": np.array([2, 3])})


@pytest.mark.parametrize("other", ["1, s", "s", "c, s"])
def test_an_expand_that_makes_the_shape_stays(other: str) -> None:
    leaves(
        TEXT.format(y=other, e="e"),
        remove_broadcast_expands,
        "the shape may change without the Expand",
    )


def test_expands_of_expands() -> None:
    text = """main (float[1, 1] x) => (float[2, 3] z) <int64[2] a = {{2, 1}}, int64[2] b = {{2, 3}}> {{
      float[2, 1] y = Expand (x, a)  z = Expand ({}, b)
    }}"""
    rewrite(text.format("y"), remove_broadcast_expands, 1, text.format("x"))
    leaves(
        text.format("y").replace("{2, 3}", "{1, 3}"),
        remove_broadcast_expands,
        "the shape may change without the Expand",
    )


FUNCTIONS_TEXT = """<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>
main (float[b, s] x, float[{m}] m, float[c, t] u, float[c, t] v) => (float[b, s] y, float[c, t] z) {{
  y = ai.coreai.f (x, m)  z = ai.coreai.f (u, v)
}}
<domain: "ai.coreai", opset_import: ["": 23]>
f (x, mask) => (y) {{ d = Shape (x)  e = Expand (mask, d)  y = Mul (x, e) }}
"""


def test_an_expand_that_no_call_needs_goes() -> None:
    text = FUNCTIONS_TEXT.format(m="b, s")
    model = parse(text)
    assert run_passes(model, [remove_expands_in_functions]).total == 1
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Shape", "Mul"]
    assert all(value.shape is None for value in function.inputs)
    assert run_passes(model, [remove_expands_in_functions]).total == 0
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    feeds = {"x": a, "m": a + 1, "u": a.T, "v": a.T + 2}
    for wanted, actual in zip(run(parse(text), feeds), run(model, feeds), strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_one_call_that_needs_it_keeps_it() -> None:
    model = parse(FUNCTIONS_TEXT.format(m="s"))
    assert run_passes(model, [remove_expands_in_functions]).total == 0
    assert same_bytes(model, parse(FUNCTIONS_TEXT.format(m="s")))


def test_casts_before_an_expand_keep_the_shape() -> None:
    text = FUNCTIONS_TEXT.replace(
        "e = Expand (mask, d)", "w = Cast<to = 1> (mask)  e = Expand (w, d)"
    )
    model = parse(text.format(m="b, s"))
    assert run_passes(model, [remove_expands_in_functions]).total == 1
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["Shape", "Cast", "Mul"]


ATTENTION = """
<domain: "ai.coreai", opset_import: ["": 23]>
scaled_dot_product_attention (query, key, value) => (output) { output = Attention (query, key, value) }"""


HEAD = (
    "main (float[b, 4, s, 8] q, float[b, 2, s, 8] k, float[b, 2, s, 8] v) => (float[b, 4, s, 8] y)"
)


REPEAT = """
  float[b, 2, 1, s, 8] {x}1 = Unsqueeze ({x}, two)  float[b, 2, 2, s, 8] {x}2 = Expand ({x}1, wide)
  float[b, 4, s, 8] {x}3 = Reshape ({x}2, all)"""


CONSTANTS = "<int64[1] two = {2}, int64[5] wide = {1, 1, 2, 1, 1}, int64[4] all = {0, 4, -1, 8}>"


def test_heads_are_grouped_by_attention_itself() -> None:
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 4, 3, 8), "k": (2, 2, 3, 8), "v": (2, 2, 3, 8)}
    call = "  y = ai.coreai.scaled_dot_product_attention ({})\n}}" + ATTENTION.replace(
        "{", "{{"
    ).replace("}", "}}")
    fuses(
        f"{HEAD} {CONSTANTS} {{{REPEAT.format(x='k')}{REPEAT.format(x='v')}\n{call.format('q, k3, v3')}",
        remove_repeated_heads,
        1,
        f"{HEAD} {{ {call.format('q, k, v')}",
        {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()},
    )


def test_heads_of_bfloat16_are_expanded_between_casts() -> None:
    repeat = """
  bfloat16[b, 2, 1, s, 8] {x}1 = Unsqueeze ({x}, two)  float[b, 2, 1, s, 8] {x}w = Cast <to = 1> ({x}1)
  float[b, 2, 2, s, 8] {x}e = Expand ({x}w, wide)  bfloat16[b, 2, 2, s, 8] {x}2 = Cast <to = 16> ({x}e)
  bfloat16[b, 4, s, 8] {x}3 = Reshape ({x}2, all)"""
    head = HEAD.replace("float[", "bfloat16[")
    call = f"y = ai.coreai.scaled_dot_product_attention (q, k, v)\n}}{ATTENTION}"
    fuses(
        f"{head} {CONSTANTS} {{{repeat.format(x='k')}{repeat.format(x='v')}\n"
        f"{call.replace('k, v)', 'k3, v3)', 1)}",
        remove_repeated_heads,
        1,
        f"{head} {{ {call}",
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("q, k3, v", "only one of keys and values is repeated"),
        ("q, k, v", None),
    ],
)
def test_what_is_not_repeated_stays(arguments: str, reason: str | None) -> None:
    text = f"{HEAD} {CONSTANTS} {{{REPEAT.format(x='k')} u = Neg (k3)  y = ai.coreai.scaled_dot_product_attention ({arguments})\n}}{ATTENTION}"
    leaves(text, remove_repeated_heads, reason)
