"""Tests of replaces a Gather whose indices are a range or one row."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.remove_unused import remove_dead_code
from coreai_onnx.passes.cleanup.replace_gathers import gathers_of_one_row, gathers_of_ranges
from tests.passes.rewriting import fuses, leaves, parse, run, run_passes

HEAD = "main (float[b, s, 2] x, int64[b, s] ids) => (float[b, s, 2] y) <float[3, 2] t = {1, 2, 3, 4, 5, 6}, int64[1, 4] kinds = {1, 1, 1, 1}, int64[1] o = {0}, int64[1] i = {1}> {"
FEEDS = {
    "x": np.arange(12, dtype=np.float32).reshape(2, 3, 2),
    "ids": np.array([[0, 1, 2], [3, 0, 1]], np.int64),
}


@pytest.mark.parametrize(
    "kinds",
    [
        (
            "int64[1] n = Shape <start = 1, end = 2> (ids)  int64[1, s] k = Slice (kinds, o, n, i, i)"
            "  int64[2] d = Shape (ids)  int64[b, s] g = Expand (k, d)"
        ),
        "int64[2] d = Shape (ids)  int64[4, 4] w = Expand (kinds, four)  int64[b, s] g = GatherElements <axis = 1> (w, ids)",
    ],
)
def test_the_row_is_added(kinds: str) -> None:
    head = HEAD.replace("{1}>", "{1}, int64[2] four = {4, 4}>")
    text = f"{head} {kinds}  float[b, s, 2] r = Gather (t, g)  y = Add (x, r) }}"
    model = parse(text)
    assert (
        run_passes(model, [gathers_of_one_row, remove_dead_code]).counts["gathers_of_one_row"] == 1
    )
    assert [node.op_type for node in model.graph] == ["Add"]
    for a, b in zip(run(model, FEEDS), run(parse(text), FEEDS), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        ("y = Mul (x, r)", "the rows must only be added to tensors of their shape"),
        (
            "z = ReduceSum <keepdims = 1> (x, o)  y = Add (r, z)",
            "the rows must only be added to tensors of their shape",
        ),
        ("y = Add (r, r)", "the rows must only be added to tensors of their shape"),
    ],
)
def test_others_stay(use: str, reason: str) -> None:
    text = f"{HEAD} int64[2] d = Shape (ids)  int64[b, s] g = Expand (i, d)  float[b, s, 2] r = Gather (t, g)  {use} }}"
    leaves(text, gathers_of_one_row, reason)


def test_rows_of_other_places_are_no_near_miss() -> None:
    text = f"{HEAD} float[b, s, 2] r = Gather (t, ids)  y = Add (x, r) }}"
    leaves(text, gathers_of_one_row, None)


TEXT = """main (int64[{b}, s] x, int64 nb, int64 ns) => (int64[b, 1, s, 1] y)
  <int64 zero = {{0}}, int64 one = {{1}}, int64[3] rows = {{1, 2, 3}}, int64[3] columns = {{{columns}}}, int64[1] last = {{-1}}> {{
  int64[b] i = Range ({first}, nb, one)  int64[b, 1, 1, 1] i4 = Unsqueeze (i, rows)
  int64[s] j = Range (zero, ns, one)  int64[1, 1, s, 1] j4 = Unsqueeze (j, columns)
  int64[4] is = Shape (i4)  int64[4] js = Shape (j4)  int64[4] wide = Max (is, js)
  int64[b, 1, s, 1] ie = Expand (i4, wide)  int64[b, 1, s, 1] je = Expand (j4, wide)
  int64[b, 1, s, 1, 1] iu = Unsqueeze (ie, last)  int64[b, 1, s, 1, 1] ju = Unsqueeze (je, last)
  indices = Concat <axis = -1> ({order})
  y = GatherND (x, indices)
}}"""
PLAIN = {"columns": "0, 1, 3", "first": "zero", "order": "iu, ju", "b": "b"}


def test_all_positions_in_order_are_the_data() -> None:
    fuses(
        TEXT.format(**PLAIN),
        gathers_of_ranges,
        1,
        """main (int64[b, s] x, int64 nb, int64 ns) => (int64[b, 1, s, 1] y) <int64[2] y_axes = {1, 3}> {
          y = Unsqueeze (x, y_axes)
        }""",
        {"x": np.arange(6).reshape(2, 3), "nb": np.array(2), "ns": np.array(3)},
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"order": "ju, iu"}, "the axes are gathered in another order"),
        ({"b": "c"}, "the positions may not cover the axis"),
        ({"first": "one"}, None),
    ],
)
def test_other_positions_are_gathered(change, reason) -> None:
    leaves(TEXT.format(**{**PLAIN, **change}), gathers_of_ranges, reason)
