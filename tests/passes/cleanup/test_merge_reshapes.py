"""Tests of merges reshapes in a row, and makes their shapes constants."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.merge_consecutive import constant_reshapes, merge_reshapes
from tests.passes.rewriting import fuses, leaves, rewrite, same_numbers


def test_unsqueezes_are_joined() -> None:
    fuses(
        """main (float[s, t] x) => (float[1, s, 1, t] z) <int64[1] a = {0}, int64[1] b = {-2}> {
          float[1, s, t] y = Unsqueeze (x, a)  z = Unsqueeze (y, b)
        }""",
        merge_reshapes,
        1,
        "main (float[s, t] x) => (float[1, s, 1, t] z) <int64[2] z_axes = {0, 2}> { z = Unsqueeze (x, z_axes) }",
        {"x": np.ones((2, 3), np.float32)},
    )


@pytest.mark.parametrize(
    ("middle", "first"),
    [
        ("float[b, 4, 1, 8]", "Unsqueeze (x, a)"),
        ("float[c, 8]", "Reshape (x, rows)"),
    ],
)
def test_targets_are_joined(middle: str, first: str) -> None:
    fuses(
        f"""main (float[b, 4, 8] x) => (float[b, 32] z) <int64[1] a = {{2}}, int64[2] rows = {{-1, 8}}, int64[2] s = {{-1, 32}}> {{
          {middle} y = {first}  z = Reshape (y, s)
        }}""",
        merge_reshapes,
        1,
        "main (float[b, 4, 8] x) => (float[b, 32] z) <int64[2] z_shape = {0, 32}> { z = Reshape (x, z_shape) }",
        {"x": np.arange(64, dtype=np.float32).reshape(2, 4, 8)},
    )


def test_two_unknown_dims_cannot_be_inferred() -> None:
    leaves(
        """main (float[b, s] x, int64[2] s2) => (float[c, d] z) <int64[1] all = {-1}> {
          float[e] y = Reshape (x, all)  z = Reshape (y, s2)
        }""",
        merge_reshapes,
        "too few dims are known for one target",
    )


TEXT = """main (float[batch, seq, 384] x) => (float[batch, seq, 12, 32] y) <int64[2] heads = {12, 32}> {
  s = Shape <end = 2> (x)
  t = Concat <axis = 0> (s, heads)
  y = Reshape (x, t)
}"""


def test_copied_dims_become_zeros() -> None:
    expected = """main (float[batch, seq, 384] x) => (float[batch, seq, 12, 32] y)
    <int64[2] heads = {12, 32}, int64[4] y_shape = {0, 0, 12, 32}>
    { s = Shape <end = 2> (x)  t = Concat <axis = 0> (s, heads)  y = Reshape (x, y_shape) }"""
    rewrite(TEXT, constant_reshapes, 1, expected)
    same_numbers(TEXT, constant_reshapes, {"x": np.zeros((2, 3, 384), np.float32)})
    same_numbers(TEXT, constant_reshapes, {"x": np.zeros((0, 3, 384), np.float32)})


def test_one_unknown_dim_is_inferred() -> None:
    text = """main (float[batch, seq, 12, 32] x, int64[1] n) => (float[n, 32] y) <int64[1] d = {32}>
    { t = Concat <axis = 0> (n, d)  y = Reshape (x, t) }"""
    expected = """main (float[batch, seq, 12, 32] x, int64[1] n) => (float[n, 32] y)
    <int64[1] d = {32}, int64[2] y_shape = {-1, 32}>
    { t = Concat <axis = 0> (n, d)  y = Reshape (x, y_shape) }"""
    rewrite(text, constant_reshapes, 1, expected)
    feeds = {"x": np.zeros((2, 3, 12, 32), np.float32), "n": np.array([72])}
    same_numbers(text, constant_reshapes, feeds)


def test_a_copied_and_an_inferred_dim_do_not_go_together() -> None:
    text = """main (float[batch, seq, 4] x, int64[1] n) => (float[batch, n] y) {
      b = Shape <end = 1> (x)  t = Concat <axis = 0> (b, n)  y = Reshape (x, t)
    }"""
    leaves(text, constant_reshapes, "too few dims of the target are known")


def test_unless_the_target_inferred_it_already() -> None:
    text = """main (float[batch, seq, 4] x) => (float[batch, n] y) <int64[1] m = {-1}> {
      b = Shape <end = 1> (x)  t = Concat <axis = 0> (b, m)  y = Reshape (x, t)
    }"""
    same_numbers(text, constant_reshapes, {"x": np.zeros((2, 3, 4), np.float32)})


def test_two_inferred_dims_stay() -> None:
    leaves(
        "main (float[a, b] x, int64[2] t) => (float[c, d] y) { y = Reshape (x, t) }",
        constant_reshapes,
        "the target shape is not known",
    )


def test_a_dim_at_another_place_is_not_copied() -> None:
    text = """main (float[a, b] x) => (float[b, a] y) { p = Shape <start = 1> (x)  q = Shape <end = 1> (x)
    t = Concat <axis = 0> (p, q)  y = Reshape (x, t) }"""
    leaves(text, constant_reshapes, "too few dims of the target are known")


def test_allowzero_stays() -> None:
    text = TEXT.replace("Reshape (x, t)", "Reshape <allowzero = 1> (x, t)")
    leaves(text, constant_reshapes, "allowzero gives 0 another meaning")
