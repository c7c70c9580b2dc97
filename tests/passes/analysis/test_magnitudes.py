"""Bounds of the numbers that positions, ids and masks lead to."""

from __future__ import annotations

import pytest

from coreai_onnx.passes.analysis.magnitudes import LARGEST_SIZE, Magnitudes
from coreai_onnx.passes.engine.surgeon import open_model
from tests.passes.rewriting import parse

HEAD = """main (int64[b, n] ids, int64[b, n] mask, int64[b, n] other, float[b, n] f)
  => (float[b, n, 2] rows, bool[b, n] m, {result}) <
  float[4, 2] table = {{1, 2, 3, 4, 5, 6, 7, 8}},
  int64 zero = {{0}}, int64 one = {{1}}, int64 four = {{4}}, float half = {{0.5}}, float nan = {{nan}}> {{
  rows = Gather (table, ids)  m = Cast <to = 9> (mask)
  s = Shape <start = 1, end = 2> (ids)  size = Squeeze (s)  range = Range (zero, size, one)
  {line}
}}"""


def bound(line: str, dtype: str = "int64") -> float | None:
    model = parse(HEAD.format(line=line, result=f"{dtype}[c] y"), 18)
    graph = open_model(model)
    return Magnitudes(graph).of(graph.outputs[-1])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("y = Identity (ids)", LARGEST_SIZE),
        ("y = Identity (mask)", 1),
        ("y = Identity (other)", None),
        ("y = Identity (range)", LARGEST_SIZE),
        ("y = Sub (ids, range)", 2 * LARGEST_SIZE),
        ("y = Mul (mask, four)", 4),
        ("y = CumSum (mask, one)", LARGEST_SIZE),
        ("y = Where (m, ids, four)", LARGEST_SIZE),
        ("y = Where (m, other, four)", None),
        ("y = Sign (other)", 1),
        ("y = Mod (other, four)", 4),
        ("y = ArgMax (f)", LARGEST_SIZE),
        ("y = ConstantOfShape <value = int64[1] {-7}> (s)", 7),
        ("y = Min (mask, four)", 4),
    ],
)
def test_integers(line: str, expected: float | None) -> None:
    assert bound(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("g = Cast <to = 1> (mask)  y = Div (g, half)", 2),
        ("y = Div (half, f)", None),
        ("y = Log (f)", 104),
        ("g = Log (f)  y = Ceil (g)", 105),
        ("y = Mul (f, half)", None),
        ("y = Add (half, nan)", None),
    ],
)
def test_floats(line: str, expected: float | None) -> None:
    assert bound(line, "float") == expected


def test_ids_that_are_shifted() -> None:
    text = """main (int64[b, n] x, int64[b, n] z) => (float[b, n, 2] y, float[b, n, 2] v) <
      float[4, 2] table = {1, 2, 3, 4, 5, 6, 7, 8}, int64 one = {1}> {
      a = Add (x, one)  y = Gather (table, a)  c = Mul (z, one)  v = Gather (table, c)
    }"""
    graph = open_model(parse(text, 18))
    bounds = Magnitudes(graph)
    assert [bounds.of(tensor) for tensor in graph.inputs] == [LARGEST_SIZE, None]
