"""Matrices of integers and booleans in dtypes that WebGPU computes."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.layout.integers_in_int32 import (
    casts_before_views,
    integers_in_int32,
    readers_of_int32,
    zeros_as_booleans,
)
from coreai_onnx.targets.coverage import gaps
from coreai_onnx.targets.providers import WEBGPU
from tests.passes.rewriting import leaves, parse, rewrite, run, run_passes, same_numbers

POSITIONS = """
main (float[a] x) => ({dtype}[{dims}] y) <
  int64 zero = {{0}}, int64 one = {{1}}, int64[1] first = {{0}}, int64[1] second = {{1}}
> {{
  int64[1] sizes = Shape (x)
  size = Squeeze (sizes, first)
  int64[a] range = Range (zero, size, one)
  int64[a, 1] column = Unsqueeze (range, second)
  int64[1, a] row = Unsqueeze (range, first)
  {line}
}}"""
FEEDS = {"x": np.zeros(5, np.float32)}
MAY_NOT_FIT = "the values may not fit into int32"


def positions(line: str, dtype: str = "int64", dims: str = "a, a") -> str:
    return POSITIONS.format(line=line, dtype=dtype, dims=dims)


@pytest.mark.parametrize("op", ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
def test_comparisons_of_positions(op: str) -> None:
    text = positions(f"y = {op} (column, row)", "bool")
    same_numbers(text, integers_in_int32, FEEDS)
    model = parse(text)
    run_passes(model, [integers_in_int32, readers_of_int32])
    assert [str(value.dtype) for value in model.graph[-1].inputs] == ["INT32", "INT32"]


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_distances(op: str) -> None:
    text = positions(f"y = {op} (column, {'two' if op == 'Mul' else 'row'})", dims="a, b").replace(
        "> {", ", int64 two = {2}\n> {", 1
    )
    same_numbers(text, integers_in_int32, FEEDS)
    model = parse(text)
    run_passes(model, [integers_in_int32])
    assert [node.op_type for node in model.graph][-2:] == [op, "Cast"]
    assert run(model, FEEDS)[0].dtype == np.int64


def test_products_of_positions_may_be_large() -> None:
    text = "main (int64[a, 1] x, int64[1, a] z) => (bool[a, a] y) { y = Less (x, z) }"
    leaves(text, integers_in_int32, MAY_NOT_FIT)
    model = parse(positions("y = Mul (column, row)"))
    report = run_passes(model, [integers_in_int32])
    assert "Mul" in [miss.miss.op for miss in report.near_misses]


def test_vectors_stay() -> None:
    vectors = "main (int64[a] x, int64[a] z) => (int64[a] y) { y = Add (x, z) }"
    leaves(vectors, integers_in_int32)
    leaves(vectors.replace("int64[a]", "float[a, b]"), integers_in_int32)
    unknown = """main (int64[a] x, float[b] d) => (bool[c, e] y) {
      s = Shape (d)  t = Reshape (x, s)  y = Less (t, t)
    }"""
    leaves(unknown, integers_in_int32, "the rank is not known", opset=18)


MASKED = {"x": np.array([[True, False, True], [False, False, True]])}


@pytest.mark.parametrize(
    ("line", "dims"),
    [
        ("y = Transpose <perm = [1, 0]> (x)", "3, 2"),
        ("y = Slice (x, one, two, one)", "2, 1"),
        ("y = Concat <axis = 0> (x, x)", "4, 3"),
        ("y = Reshape (x, six)", "6"),
        ("y = Equal (x, x)", "2, 3"),
    ],
)
def test_booleans(line: str, dims: str) -> None:
    text = f"""main (bool[2, 3] x) => (bool[{dims}] y) <
      int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] six = {{6}}> {{ {line} }}"""
    assert gaps(parse(text, 18), WEBGPU)
    same_numbers(text, integers_in_int32, MASKED, opset=18)
    model = parse(text, 18)
    run_passes(model, [integers_in_int32])
    assert gaps(model, WEBGPU) == []


def test_sums_of_masks() -> None:
    text = """main (bool[2, 3] x) => (int64[2, 3] y) <int64 axis = {1}> {
      int64[2, 3] i = Cast <to = 7> (x)  y = CumSum (i, axis)
    }"""
    same_numbers(text, integers_in_int32, MASKED, opset=18)
    model = parse(text, 18)
    run_passes(model, [integers_in_int32])
    assert [node.op_type for node in model.graph][-3:] == ["Cast", "CumSum", "Cast"]
    assert str(model.graph[-2].inputs[0].dtype) == "FLOAT"


def test_bytes() -> None:
    text = (
        "main (uint8[2, 3] x) => (uint8[2, 1] y) <int64[1] axis = {1}> { y = ReduceMax (x, axis) }"
    )
    same_numbers(text, integers_in_int32, {"x": MASKED["x"].astype(np.uint8)}, opset=18)


def test_readers() -> None:
    text = """main (float[n, 2] x, int32[a, b] i) => (float[a, b, 2] y) {
      int64[a, b] j = Cast <to = 7> (i)  y = Gather (x, j)
    }"""
    rewrite(
        text,
        readers_of_int32,
        1,
        """main (float[n, 2] x, int32[a, b] i) => (float[a, b, 2] y) {
          j = Cast <to = 7> (i)  y = Gather (x, i)
        }""",
        opset=18,
    )


def test_readers_of_what_may_not_fit() -> None:
    text = """main (float[a, b] x) => (float[a, b] y) {
      int64[a, b] i = Cast <to = 7> (x)  y = Cast <to = 1> (i)
    }"""
    leaves(text, readers_of_int32, MAY_NOT_FIT)
    wrapped = """main (int32[a, b] x) => (bool[a, b] y) {
      uint8[a, b] i = Cast <to = 2> (x)  y = Cast <to = 9> (i)
    }"""
    leaves(wrapped, readers_of_int32, MAY_NOT_FIT)


def test_casts_of_views() -> None:
    text = """main (int64[b, n] x) => (float[b, 1, n] y) <int64[1] a = {1}> {
      int64[b, 1, n] w = Unsqueeze (x, a)  y = Cast <to = 1> (w)
    }"""
    same_numbers(text, casts_before_views, {"x": np.array([[1 << 40, 3]])}, opset=18)
    model = parse(text, 18)
    run_passes(model, [casts_before_views])
    assert [node.op_type for node in model.graph][-2:] == ["Cast", "Unsqueeze"]
    vector = """main (int64 x) => (float[1] y) <int64[1] a = {0}> {
      int64[1] w = Unsqueeze (x, a)  y = Cast <to = 1> (w)
    }"""
    leaves(vector, casts_before_views, opset=18)


def test_zeros() -> None:
    text = "main (int64[b, n] x) => (bool[b, n] y) <int64 c = {0}> { y = Equal (x, c) }"
    same_numbers(text, zeros_as_booleans, {"x": np.array([[1 << 40, 0, -1]])}, opset=18)
    leaves(text.replace("{0}", "{1}"), zeros_as_booleans, opset=18)
