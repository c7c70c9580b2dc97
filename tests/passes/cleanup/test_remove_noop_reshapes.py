from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.remove_noops import remove_noop_reshapes
from tests.passes.rewriting import leaves, rewrite, same_numbers

WITH = "main (float[n, 8] x) => (float[n, 8] z) <{inner}int64[2] s = {{{target}}}> {{ y = Reshape (x, s)  z = Neg (y) }}"
WITHOUT = "main (float[n, 8] x) => (float[n, 8] z) <int64[2] s = {{{target}}}> {{ z = Neg (x) }}"


@pytest.mark.parametrize("target", ["0, 8", "-1, 8", "0, -1"])
def test_targets_that_name_the_same_shape(target) -> None:
    text = WITH.format(inner="", target=target)
    rewrite(text, remove_noop_reshapes, 1, WITHOUT.format(target=target))
    same_numbers(text, remove_noop_reshapes, {"x": np.ones((3, 8), np.float32)})


def test_declared_shapes_that_are_equal() -> None:
    text = WITH.format(inner="float[n, 8] y, ", target="-1, 8")
    rewrite(text, remove_noop_reshapes, 1, WITHOUT.format(target="-1, 8"))


def test_a_target_computed_from_the_input() -> None:
    text = """main (float[n, m] x) => (float[n, m] z) { s = Shape (x)  y = Reshape (x, s)  z = Neg (y) }"""
    expected = "main (float[n, m] x) => (float[n, m] z) { s = Shape (x)  z = Neg (x) }"
    rewrite(text, remove_noop_reshapes, 1, expected)


@pytest.mark.parametrize("target", ["8, -1", "4, -1", "-1, 16"])
def test_other_targets_stay(target) -> None:
    leaves(
        WITH.format(inner="", target=target).replace("float[n, 8] z", "float[p, q] z"),
        remove_noop_reshapes,
    )


def test_zero_with_allowzero_is_a_dim_of_zero() -> None:
    text = "main (float[n, 8] x) => (float[p, 8] z) <int64[2] s = {0, 8}> { z = Reshape <allowzero = 1> (x, s) }"
    leaves(text, remove_noop_reshapes)


def test_two_unknown_dims_are_not_equal() -> None:
    text = "main (float[?, 8] x) => (float[?, 8] z) <int64[2] s = {4, 8}, float[?, 8] y> { y = Reshape (x, s)  z = Neg (y) }"
    leaves(text, remove_noop_reshapes)


def test_an_unknown_shape_stays() -> None:
    leaves(
        "main (float x) => (float[p] z) <int64[1] s = {0}> { a = Neg (x)  z = Reshape (a, s) }",
        remove_noop_reshapes,
        "the shape of the input is not known",
    )
