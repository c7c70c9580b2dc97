"""Forms for which execution providers have kernels."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.layout.provider_kernels import (
    casts_of_dtypes,
    positions_in_int32,
    sums_of_two,
)
from tests.passes.rewriting import leaves, parse, rewrite, run, run_passes, same_numbers

POSITIONS = """
main (float[a] x) => ({dtype}[a, a] y) <
  int64 zero = {{0}}, int64 one = {{1}}, int64[1] first = {{0}}, int64[1] second = {{1}}
> {{
  int64[1] sizes = Shape (x)
  size = Squeeze (sizes, first)
  int64[a] range = Range (zero, size, one)
  int64[a, 1] column = Unsqueeze (range, second)
  int64[1, a] row = Unsqueeze (range, first)
  y = {op} (column, row)
}}"""
FEEDS = {"x": np.zeros(5, np.float32)}


def test_casts_like_a_known_dtype() -> None:
    rewrite(
        "main (float[a] x, float16[b] z) => (float16[a] y) { y = CastLike (x, z) }",
        casts_of_dtypes,
        1,
        "main (float[a] x, float16[b] z) => (float16[a] y) { y = Cast <to = 10> (x) }",
    )


def test_casts_like_an_unknown_dtype() -> None:
    text = """main (float[a] x, float[b] z) => (float[a] y) {
      w = Neg (z)  y = CastLike (x, w)
    }"""
    leaves(text, casts_of_dtypes, "a dtype is not known")


def test_sums() -> None:
    text = "main (float[a] x, float[a] z) => (float[a] y) {{ y = {} (x, z) }}"
    rewrite(text.format("Sum"), sums_of_two, 1, text.format("Add"))
    leaves("main (float[a] x) => (float[a] y) { y = Sum (x, x, x) }", sums_of_two)


@pytest.mark.parametrize("op", ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
def test_comparisons_of_positions(op: str) -> None:
    text = POSITIONS.format(dtype="bool", op=op)
    same_numbers(text, positions_in_int32, FEEDS)
    model = parse(text)
    run_passes(model, [positions_in_int32])
    assert [str(value.dtype) for value in model.graph[-1].inputs] == ["INT32", "INT32"]


@pytest.mark.parametrize("op", ["Add", "Sub"])
def test_distances(op: str) -> None:
    text = POSITIONS.format(dtype="int64", op=op)
    same_numbers(text, positions_in_int32, FEEDS)
    model = parse(text)
    run_passes(model, [positions_in_int32])
    assert [node.op_type for node in model.graph][-2:] == [op, "Cast"]
    assert run(model, FEEDS)[0].dtype == np.int64


def test_integers_that_may_be_large() -> None:
    text = "main (int64[a, 1] x, int64[1, a] z) => (bool[a, a] y) { y = Less (x, z) }"
    leaves(text, positions_in_int32, "the operands may not fit into int32")


def test_sizes_stay() -> None:
    vectors = "main (int64[a] x, int64[a] z) => (int64[a] y) { y = Add (x, z) }"
    leaves(vectors, positions_in_int32)
    leaves(vectors.replace("int64", "float"), positions_in_int32)
