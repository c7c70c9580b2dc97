from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes import run_passes
from coreai_onnx.passes.cleanup.gathers_of_one_row import gathers_of_one_row
from coreai_onnx.passes.cleanup.remove_dead_code import remove_dead_code
from tests.passes.rewriting import leaves, parse, run

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
        ("y = Mul (x, r)", "it is not only added to tensors of its shape"),
        (
            "z = ReduceSum <keepdims = 1> (x, o)  y = Add (r, z)",
            "it is not only added to tensors of its shape",
        ),
        ("y = Add (r, r)", "it is not only added to tensors of its shape"),
    ],
)
def test_others_stay(use: str, reason: str) -> None:
    text = f"{HEAD} int64[2] d = Shape (ids)  int64[b, s] g = Expand (i, d)  float[b, s, 2] r = Gather (t, g)  {use} }}"
    leaves(text, gathers_of_one_row, reason)


def test_rows_of_other_places_are_no_near_miss() -> None:
    text = f"{HEAD} float[b, s, 2] r = Gather (t, ids)  y = Add (x, r) }}"
    leaves(text, gathers_of_one_row, None)
