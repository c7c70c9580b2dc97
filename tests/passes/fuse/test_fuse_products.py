"""Products of float32 become gather_mm."""

from __future__ import annotations

import pytest

from coreai_onnx.passes.fuse.fuse_products import fuse_products, fuse_tiled_products
from tests.passes.rewriting import fuses, leaves

TEXT = (
    "main (float[n, 2] x, float[2, 3] v, float[b, 3, 2] z, float[3] r) => (float[n, 3] y) "
    "<float[2, 3] w = {{1, 2, 3, 4, 5, 6}}> {{ {body} }}"
)


def call(factors: str, transposed: int = 0) -> str:
    name = "gather_mm" + ".transposed" * transposed
    return (
        f"ai.coreai.{name}<num_batch_axes: int = 0, transpose_rhs: int = {transposed}, "
        f"version: int = 1> ({factors})"
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = MatMul (x, w)", f"y = {call('x, w')}"),
        (
            "float[n, 3] m = MatMul (x, w) float[n, 3] k = MatMul (x, v) y = Add (m, k)",
            f"float[n, 3] m = {call('x, w')} float[n, 3] k = {call('x, v')} y = Add (m, k)",
        ),
        (
            "y = Gemm (x, w, r)",
            f"float[n, 3] y_gather_mm = {call('x, w')} y = Add (y_gather_mm, r)",
        ),
    ],
)
def test_a_product_is_one_node(body: str, expected: str) -> None:
    fuses(
        TEXT.format(body=body), fuse_products, body.count("MatMul") or 1, TEXT.format(body=expected)
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = Gemm <alpha = 0.5> (x, w, r)", "the product is scaled or transposed"),
        ("s = Sum (r) y = MatMul (x, s)", "the second factor is not known to be a matrix"),
        ("y = Add (x, x)", None),
    ],
)
def test_what_stays(body: str, reason: str | None) -> None:
    leaves(TEXT.format(body=body), fuse_products, reason)


def test_constant_factors_for_tiles() -> None:
    both = "float[n, 3] m = {} float[n, 3] k = MatMul (x, v) y = Add (m, k)"
    tiled = call("x, w").replace("gather_mm", "gather_mm.tiles")
    text = TEXT.format(body=both.format("MatMul (x, w)"))
    fuses(text, fuse_tiled_products, 1, TEXT.format(body=both.format(tiled)))
    leaves(
        TEXT.format(body="y = MatMul (x, v)"),
        fuse_tiled_products,
        "the second factor is not constant",
    )
