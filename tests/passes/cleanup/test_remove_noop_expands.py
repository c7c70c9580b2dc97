from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.remove_noops import remove_noop_expands
from tests.passes.rewriting import leaves, rewrite, same_numbers

WITH = "main (float[n, 8] x) => (float[n, 8] z) <int64[{k}] s = {{{target}}}> {{ y = {op} (x, s)  z = Neg (y) }}"
WITHOUT = "main (float[n, 8] x) => (float[n, 8] z) <int64[{k}] s = {{{target}}}> {{ z = Neg (x) }}"


@pytest.mark.parametrize(
    ("op", "target"), [("Expand", "1, 1"), ("Expand", "1, 8"), ("Expand", "8"), ("Tile", "1, 1")]
)
def test_what_repeats_nothing_goes(op, target) -> None:
    k = target.count(",") + 1
    text = WITH.format(op=op, target=target, k=k)
    rewrite(text, remove_noop_expands, 1, WITHOUT.format(target=target, k=k))
    same_numbers(text, remove_noop_expands, {"x": np.ones((3, 8), np.float32)})


def test_the_shape_of_the_tensor_itself() -> None:
    text = (
        "main (float[n, m] x) => (float[n, m] z) { s = Shape (x)  y = Expand (x, s)  z = Neg (y) }"
    )
    rewrite(
        text,
        remove_noop_expands,
        1,
        "main (float[n, m] x) => (float[n, m] z) { s = Shape (x)  z = Neg (x) }",
    )


@pytest.mark.parametrize(
    ("op", "target"), [("Expand", "3, 8"), ("Expand", "1, 1, 1"), ("Tile", "1, 2")]
)
def test_what_repeats_stays(op, target) -> None:
    k = target.count(",") + 1
    text = WITH.format(op=op, target=target, k=k).replace("float[n, 8] z", "float z")
    leaves(
        text.replace("(float z)", "(float[p, q] z)" if k == 2 else "(float[p, q, r] z)"),
        remove_noop_expands,
    )


def test_an_unknown_target_stays() -> None:
    leaves(
        "main (float[n, 8] x, int64[2] s) => (float[p, 8] z) { z = Expand (x, s) }",
        remove_noop_expands,
        "the target shape is not known",
    )
