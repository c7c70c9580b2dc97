from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.remove_repetitions import remove_repeated_heads
from tests.passes.rewriting import fuses, leaves

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
