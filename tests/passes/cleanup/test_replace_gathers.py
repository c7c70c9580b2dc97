"""Tests of replaces a Gather whose indices are a range or one row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coreai_onnx
from coreai_onnx.passes.cleanup.remove_noops import remove_identities
from coreai_onnx.passes.cleanup.remove_unused import remove_dead_code
from coreai_onnx.passes.cleanup.replace_gathers import (
    gathers_of_one_row,
    gathers_of_parts,
    gathers_of_ranges,
)
from tests.passes.rewriting import fuses, leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

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


PARTS = """main (float[s, b, 12] y) => (float[s, b, 4] q, float[s, b, 4] k, {kind} v)
<int64[4] d = {{0, 0, 3, 4}}, int64[1] front = {{0}}, int64[1] back = {{3}},
 int64 one = {{0}}, int64 two = {{1}}, int64 three = {{-1}}> {{
  float[s, b, 3, 4] r = Reshape (y, d)
  float[1, s, b, 3, 4] u = Unsqueeze (r, front)
  float[3, s, b, 1, 4] t = Transpose <perm = {perm}> (u)
  float[3, s, b, 4] p = Squeeze (t, back)
  q = Gather (p, one)  k = Gather (p, two)  {last}
}}"""


def test_parts_of_a_packed_projection() -> None:
    text = PARTS.format(kind="float[s, b, 4]", perm="[3, 1, 2, 0, 4]", last="v = Gather (p, three)")
    model = parse(text)
    run_passes(model, [gathers_of_parts, remove_identities, remove_dead_code])
    assert [node.op_type for node in model.graph][:1] == ["Split"]
    assert "Gather" not in {node.op_type for node in model.graph}
    y = np.random.default_rng(0).standard_normal((5, 2, 12)).astype(np.float32)
    for actual, expected in zip(run(model, {"y": y}), run(parse(text), {"y": y}), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_parts_that_something_else_reads_stay() -> None:
    text = PARTS.format(kind="float[3, s, b, 4]", perm="[3, 1, 2, 0, 4]", last="v = Relu (p)")
    leaves(text, gathers_of_parts, "something else than a Gather of one part reads it")


def test_the_packed_projection_of_multihead_attention() -> None:
    attention = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x, dims = torch.randn(2, 5, 32), {0: torch.export.Dim("b"), 1: torch.export.Dim("s")}
    layer = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True, norm_first=True).eval()
    layer.self_attn = attention
    program = coreai_onnx.convert(layer, (x,), dynamic_shapes={"src": dims}).optimize()
    names = [node.op_type for node in program.model.graph]
    assert "Split" in names
    assert "Gather" not in names
    with torch.no_grad():
        assert_close(program.run(x)[0], layer(x))
