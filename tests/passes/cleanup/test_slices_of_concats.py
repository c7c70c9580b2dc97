from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.slices_of_concats import slices_of_concats
from tests.passes.rewriting import leaves, rewrite, same_numbers

HEAD = "main (float[b, 1] x, float[b, s] y) => (float[b, m] z) <int64[1] start = {{{}}}, int64[1] end = {{{}}}, int64[1] ax = {{1}}>"
SLICE = " {{ float[b, n] c = Concat <axis = 1> ({})  d = Slice (c, start, end, ax)  z = Neg (d) }}"


@pytest.mark.parametrize(
    ("bounds", "order", "part"),
    [
        ((1, 2**63 - 1), "x, y", "y"),
        ((0, 1), "x, y", "x"),
        ((0, -1), "y, x", "y"),
        ((-1, 2**63 - 1), "y, x", "x"),
    ],
)
def test_a_slice_takes_out_what_was_put_in(bounds, order, part) -> None:
    head = HEAD.format(*bounds)
    text = head + SLICE.format(order)
    concat = f" {{ float[b, n] c = Concat <axis = 1> ({order})  z = Neg ({part}) }}"
    rewrite(text, slices_of_concats, 1, head + concat)
    feeds = {"x": np.ones((2, 1), np.float32), "y": np.zeros((2, 3), np.float32)}
    same_numbers(text, slices_of_concats, feeds)


@pytest.mark.parametrize(
    ("bounds", "order"),
    [((2, 2**63 - 1), "x, y"), ((0, 2), "x, y"), ((0, -2), "y, x"), ((1, 2), "x, y")],
)
def test_other_slices_stay(bounds, order) -> None:
    leaves(HEAD.format(*bounds) + SLICE.format(order), slices_of_concats)


SPLIT = """main (float[b, 1] x, float[b, 2] y) => (float[b, {p}] u, float[b, {q}] v) <int64[2] sizes = {{{p}, {q}}}> {{
  float[b, 3] c = Concat <axis = 1> (x, y)
  float[b, {p}] d, float[b, {q}] e = Split <axis = -1> (c, sizes)  u = Neg (d)  v = Neg (e)
}}"""


def test_a_split_gives_back_what_was_put_in() -> None:
    rewrite(
        SPLIT.format(p=1, q=2),
        slices_of_concats,
        1,
        """main (float[b, 1] x, float[b, 2] y) => (float[b, 1] u, float[b, 2] v) <int64[2] sizes = {1, 2}> {
          float[b, 3] c = Concat <axis = 1> (x, y)  u = Neg (x)  v = Neg (y)
        }""",
    )
    leaves(SPLIT.format(p=2, q=1), slices_of_concats)
