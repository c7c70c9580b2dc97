"""The products of adapters become add_low_rank."""

from __future__ import annotations

import pytest

from coreai_onnx.passes.fuse.fuse_low_rank import fuse_low_rank
from tests.passes.rewriting import fuses, leaves

TEXT = (
    "main (float[b, t, 2] x, float[b, t, 3] y, float[k, 2, r] a, float[k, r, n] b, float[b, 1, 3] s) "
    "=> (float[b, t, 3] z) <float[2, 4] v = {{1, 2, 3, 4, 5, 6, 7, 8}}> {{ {body} }}"
)
PRODUCTS = "h = MatMul (x, a) d = MatMul (h, b)"


@pytest.mark.parametrize("terms", ["y, d", "d, y"])
def test_a_sum_is_one_node(terms: str) -> None:
    before = TEXT.format(body=f"{PRODUCTS} z = Add ({terms})")
    after = TEXT.format(body="z = ai.coreai.add_low_rank<version: int = 1> (y, x, a, b)")
    fuses(before, fuse_low_rank, 1, after.replace("<float[2, 4] v = {1, 2, 3, 4, 5, 6, 7, 8}>", ""))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            f"{PRODUCTS} e = Neg (d) m = Mul (e, d) w = Add (y, d) z = Add (w, m)",
            "something else reads a product of the adapter",
        ),
        (f"{PRODUCTS} z = Add (s, d)", "the result is not known to keep the shape of a term"),
        ("h = MatMul (x, v) e = MatMul (h, b) z = Add (y, e)", None),
        ("z = Add (y, y)", None),
    ],
)
def test_others_stay(body: str, reason: str | None) -> None:
    leaves(TEXT.format(body=body), fuse_low_rank, reason)
