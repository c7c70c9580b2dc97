from __future__ import annotations

import numpy as np

from coreai_onnx.passes.cleanup.remove_noops import remove_noop_transposes
from tests.passes.rewriting import leaves, rewrite, same_numbers


def test_the_identity_permutation_goes() -> None:
    text = (
        "main (float[n, 2] x) => (float[n, 2] z) { y = Transpose <perm = [0, 1]> (x)  z = Neg (y) }"
    )
    rewrite(
        text, remove_noop_transposes, 1, "main (float[n, 2] x) => (float[n, 2] z) { z = Neg (x) }"
    )
    same_numbers(text, remove_noop_transposes, {"x": np.ones((3, 2), np.float32)})


def test_without_perm_a_vector_stays_as_it_is() -> None:
    text = "main (float[n] x) => (float[n] z) { y = Transpose (x)  z = Neg (y) }"
    rewrite(text, remove_noop_transposes, 1, "main (float[n] x) => (float[n] z) { z = Neg (x) }")


def test_real_transposes_stay() -> None:
    leaves("main (float[n, 2] x) => (float[2, n] z) { z = Transpose (x) }", remove_noop_transposes)
    leaves(
        "main (float[n, 2] x) => (float[2, n] z) { z = Transpose <perm = [1, 0]> (x) }",
        remove_noop_transposes,
    )


def test_without_perm_the_rank_must_be_known() -> None:
    leaves(
        "main (float[n] x) => (float[n] z) { a = Neg (x)  z = Transpose (a) }",
        remove_noop_transposes,
        "without perm, the rank must be known",
    )


def test_a_perm_of_the_caller_stays() -> None:
    leaves(
        """<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>
        main (float[n] x) => (float[n] y) { y = ai.coreai.f <perm = [0]> (x) }
        <domain: "ai.coreai", opset_import: ["": 23]>
        f <perm> (x) => (y) { a = Transpose <perm: ints = @perm> (x)  y = Neg (a) }""",
        remove_noop_transposes,
        "perm refers to an attribute of the function",
    )
