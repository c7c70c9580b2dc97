from __future__ import annotations

import numpy as np

from coreai_onnx.passes.cleanup.remove_noops import remove_identities
from tests.passes.rewriting import leaves, rewrite, same_numbers

CHAIN = "main (float[n] x) => (float[n] y) { a = Identity (x)  b = Relu (a)  y = Identity (b) }"


def test_a_graph_output_keeps_its_name() -> None:
    rewrite(CHAIN, remove_identities, 2, "main (float[n] x) => (float[n] y) { y = Relu (x) }")
    same_numbers(CHAIN, remove_identities, {"x": np.array([-1, 2], np.float32)})


def test_readers_of_what_becomes_the_output_follow() -> None:
    rewrite(
        "main (float[n] x) => (float[n] y, float[n] z) { b = Relu (x)  y = Identity (b)  z = Neg (b) }",
        remove_identities,
        1,
        "main (float[n] x) => (float[n] y, float[n] z) { y = Relu (x)  z = Neg (y) }",
    )


def test_dropout_outside_training_goes() -> None:
    text = """main (float[n] x) => (float[n] y) <float r = {0.5}, bool t = {0}>
    { a = Dropout (x, r)  b = Dropout (a, r, t)  y = Neg (b) }"""
    expected = (
        """main (float[n] x) => (float[n] y) <float r = {0.5}, bool t = {0}> { y = Neg (x) }"""
    )
    rewrite(text, remove_identities, 2, expected)


def test_an_input_or_initializer_that_is_an_output_stays() -> None:
    leaves(
        "main (float[n] x) => (float[n] y) { y = Identity (x) }",
        remove_identities,
        "it names a graph output",
    )
    leaves(
        "main () => (float[1] y) <float[1] w = {1}> { y = Identity (w) }",
        remove_identities,
        "it names a graph output",
    )


def test_one_value_under_two_output_names_stays() -> None:
    leaves(
        "main (float[n] x) => (float[n] y, float[n] z) { y = Neg (x)  z = Identity (y) }",
        remove_identities,
        "it names a graph output",
    )


def test_training_stays() -> None:
    reason = "Dropout may be in training mode, or its mask is used"
    leaves(
        "main (float[n] x, bool t) => (float[n] y) <float r = {0.5}> { y = Dropout (x, r, t) }",
        remove_identities,
        reason,
    )
    leaves(
        "main (float[n] x) => (float[n] y, bool[n] m) { y, m = Dropout (x) }",
        remove_identities,
        reason,
    )


def test_a_subgraph_output_taken_from_outside_stays() -> None:
    leaves(
        """main (bool c, float[n] x) => (float[n] y) {
          h = Neg (x)
          y = If (c) <then_branch = a () => (float[n] t) { t = Identity (h) },
                      else_branch = b () => (float[n] e) { e = Abs (h) }>
        }""",
        remove_identities,
        "it names a graph output",
    )
