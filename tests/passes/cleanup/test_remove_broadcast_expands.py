from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.remove_repetitions import remove_broadcast_expands
from tests.passes.rewriting import leaves, rewrite, same_numbers

TEXT = "main (float[1, s] x, float[{y}] y, int64[2] d) => (float[b, s] z) {{ float[b, s] e = Expand (x, d)  z = Add ({e}, y) }}"


def test_an_op_that_broadcasts_needs_no_expand() -> None:
    text = TEXT.format(y="b, s", e="e")
    rewrite(text, remove_broadcast_expands, 1, TEXT.format(y="b, s", e="x"))
    feeds = {"x": np.ones((1, 3), np.float32), "y": np.ones((2, 3), np.float32)}
    same_numbers(text, remove_broadcast_expands, {**feeds, "d": np.array([2, 3])})


@pytest.mark.parametrize("other", ["1, s", "s", "c, s"])
def test_an_expand_that_makes_the_shape_stays(other: str) -> None:
    leaves(
        TEXT.format(y=other, e="e"),
        remove_broadcast_expands,
        "the shape may change without the Expand",
    )


def test_expands_of_expands() -> None:
    text = """main (float[1, 1] x) => (float[2, 3] z) <int64[2] a = {{2, 1}}, int64[2] b = {{2, 3}}> {{
      float[2, 1] y = Expand (x, a)  z = Expand ({}, b)
    }}"""
    rewrite(text.format("y"), remove_broadcast_expands, 1, text.format("x"))
    leaves(
        text.format("y").replace("{2, 3}", "{1, 3}"),
        remove_broadcast_expands,
        "the shape may change without the Expand",
    )
