from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.layout.keep_float_layers import keep_float_layers
from tests.passes.rewriting import leaves, parse, rewrite, run, run_passes
from tests.support.tolerances import assert_close

RNG = np.random.default_rng(0)
Q = "q = QuantizeLinear (x, t, u)  d = DequantizeLinear (q, t, u)"
OUT = "p = QuantizeLinear (r, o, u)  y = DequantizeLinear (p, o, u)"
CONSTANTS = "float t = {0.03}, uint8 u = {128}, float o = {0.002}, float k = {0.05}, int8 z = {0}"


def text(
    ops: str, constants: str, shape: str = "1, 2, 6", out: str = "", scale: str = "0.03"
) -> str:
    given = CONSTANTS.replace("0.03", scale)
    return (
        f"main (float[{shape}] x) => (float[{out or shape}] y) <{given}, {constants}> "
        f"{{ {Q}  {ops}  {OUT} }}"
    )


KERNEL = "float[2, 2, 1] w = {0.001, 0.0021, 3, 4}, float[2] b = {0.1, 0.2}"
MATRIX = "float[2, 2] w = {0.001, 3, 0.0021, 4}, float[2] b = {0.1, 0.2}"
CODES = "int8[2, 2, 1] w = {10, 20, -30, 40}, float[2] b = {0.1, 0.2}"
CODED = "int8[2, 2] w = {10, 20, -30, 40}, float[2] b = {0.1, 0.2}"
CHANGED = [
    ("r = Conv (d, w)", KERNEL, "1, 2, 6"),
    ("c = Conv (d, w, b)  r = Relu (c)", KERNEL, "1, 2, 6"),
    ("c = Conv (d, w)  r = Transpose <perm = [0, 1, 2]> (c)", KERNEL, "1, 2, 6"),
    ("r = ConvTranspose (d, w)", KERNEL.replace("0.0021, 3", "3, 0.0021"), "1, 2, 6"),
    ("r = Gemm (d, w, b)", MATRIX, "3, 2"),
    ("c = MatMul (d, w)  r = Add (b, c)", MATRIX, "2, 3, 2"),
]


def test_a_convolution() -> None:
    rewrite(
        text("r = Conv (d, w)", KERNEL),
        keep_float_layers,
        1,
        text("r_conv = Conv (d, w)  r = LeakyRelu <alpha = 1.0> (r_conv)", KERNEL),
    )


@pytest.mark.parametrize(("ops", "constants", "shape"), CHANGED)
def test_a_stock_session_is_exact(ops: str, constants: str, shape: str) -> None:
    """One scale for all weights would round the small ones to 0."""
    model = parse(text(ops, constants, shape))
    sizes = [int(size) for size in shape.split(", ")]
    feeds = {"x": RNG.uniform(-1, 1, sizes).astype(np.float32)}
    (wanted,) = run(model, feeds)
    changed, _ = run(model, feeds, stock=True)[0], run_passes(model, [keep_float_layers])
    assert_close(run(model, feeds, stock=True)[0], wanted)
    assert np.abs(changed - wanted).max() > 0.001


@pytest.mark.parametrize(
    ("ops", "constants", "shape"),
    [
        ("v = DequantizeLinear (w, k, z)  r = Conv (d, v, b)", CODES, "1, 2, 6"),
        ("v = DequantizeLinear (w, k, z)  r = Gemm (d, v, b)", CODED, "3, 2"),
        ("v = DequantizeLinear (w, k, z)  c = MatMul (d, v)  r = Add (c, b)", CODED, "2, 3, 2"),
    ],
)
def test_a_bias_beyond_int32(ops: str, constants: str, shape: str) -> None:
    """onnxruntime would clip it: inputs of 1e-9 and a bias of 0.2 give 5e-3."""
    given = text(ops, constants, shape, scale="3e-11")
    model, sizes = parse(given), [int(size) for size in shape.split(", ")]
    feeds = {"x": RNG.normal(size=sizes).astype(np.float32) * np.float32(1e-9)}
    (wanted,) = run(model, feeds)
    changed, report = run(model, feeds, stock=True)[0], run_passes(model, [keep_float_layers])
    assert report.total == 1
    assert_close(run(model, feeds, stock=True)[0], wanted)
    assert np.abs(changed - wanted).max() > 0.05
    leaves(given.replace("3e-11", "0.03"), keep_float_layers)


@pytest.mark.parametrize(
    ("ops", "constants", "shape", "reason"),
    [
        ("c = Conv (d, w)  r = Sigmoid (c)", KERNEL, "1, 2, 6", "the result is not quantized"),
        ("r = Conv (x, w)", KERNEL, "1, 2, 6", None),
        ("r = MatMul (d, w)", MATRIX, "3, 2", None),
    ],
)
def test_what_onnxruntime_keeps_is_left(
    ops: str, constants: str, shape: str, reason: str | None
) -> None:
    leaves(text(ops, constants, shape), keep_float_layers, reason)
