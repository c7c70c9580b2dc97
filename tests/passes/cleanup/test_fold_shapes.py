from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.fold_shapes import fold_shapes
from tests.passes.rewriting import leaves, rewrite, same_numbers

HEAD = "main (float[batch, 128, 64] x) => (int64 z) "


def test_a_known_dim_of_a_partly_known_shape() -> None:
    text = HEAD + "<int64 one = {1}> { s = Shape (x)  n = Gather (s, one)  z = Add (n, n) }"
    expected = HEAD + "<int64 one = {1}, int64 n = {128}> { z = Add (n, n) }"
    report = rewrite(
        text,
        fold_shapes,
        1,
        HEAD + "<int64 one = {1}, int64 n = {128}> { s = Shape (x)  z = Add (n, n) }",
    )
    assert expected.count("Shape") == 0
    assert {m.miss.reason for m in report.near_misses} == {
        "the shape is not known in full",
        "a graph output keeps its node",
    }
    same_numbers(text, fold_shapes, {"x": np.zeros((2, 128, 64), np.float32)})


def test_arithmetic_on_dims() -> None:
    text = """main (float[batch, 128, 64] x) => (float[p, q] y) <int64[1] m = {-1}> {
      a = Shape <start = 1, end = 2> (x)
      b = Shape <start = -1> (x)
      c = Mul (a, b)
      t = Concat <axis = 0> (m, c)
      y = Reshape (x, t)
    }"""
    rewrite(
        text,
        fold_shapes,
        4,
        "main (float[batch, 128, 64] x) => (float[p, q] y) <int64[1] m = {-1}, int64[2] t = {-1, 8192}>"
        "{ y = Reshape (x, t) }".replace("<int64[1] m = {-1}, ", "<int64[1] m = {-1}, "),
    )
    same_numbers(text, fold_shapes, {"x": np.zeros((2, 128, 64), np.float32)})


@pytest.mark.parametrize("opset", [18, 21, 23])
def test_full_shapes_and_sizes(opset) -> None:
    text = """main (float[2, 3] x) => (int64[2] y, int64 z) {
      s = Shape (x)  n = Size (x)  y = Neg (s)  z = Neg (n)
    }"""
    expected = "main (float[2, 3] x) => (int64[2] y, int64 z) <int64[2] s = {2, 3}, int64 n = {6}> { y = Neg (s)  z = Neg (n) }"
    rewrite(text, fold_shapes, 2, expected, opset=opset)
    same_numbers(text, fold_shapes, {"x": np.zeros((2, 3), np.float32)}, opset=opset)


def test_int32_stays_int32() -> None:
    text = """main (float[2, 3] x) => (int32[2] y) { s = Shape (x)  c = Cast <to = 6> (s)  y = Neg (c) }"""
    same_numbers(text, fold_shapes, {"x": np.zeros((2, 3), np.float32)})


def test_an_unknown_dim_stays() -> None:
    leaves(
        HEAD + "<int64 zero = {0}> { s = Shape (x)  z = Gather (s, zero) }",
        fold_shapes,
        "the shape is not known in full",
    )


def test_division_by_zero_stays_for_the_runtime() -> None:
    text = "main (float[0, 3] x) => (int64[2] z) <int64[1] k = {6}> { s = Shape (x)  q = Div (k, s)  z = Neg (q) }"
    rewrite(
        text,
        fold_shapes,
        1,
        "main (float[0, 3] x) => (int64[2] z) <int64[1] k = {6}, int64[2] s = {0, 3}> { q = Div (k, s)  z = Neg (q) }",
    )


def test_in_a_subgraph_that_reads_an_outer_value() -> None:
    text = """main (bool c, float[2, n] x) => (int64[1] y) {
      y = If (c) <
        then_branch = a () => (int64[1] t) { s = Shape <start = 0, end = 1> (x)  t = Neg (s) },
        else_branch = b () => (int64[1] e) { e = Shape <start = 1> (x) }>
    }"""
    same_numbers(text, fold_shapes, {"c": np.array(True), "x": np.zeros((2, 5), np.float32)})
