from __future__ import annotations

import numpy as np

from coreai_onnx.passes.fuse.store_unsigned import unsigned_activations
from tests.passes.rewriting import leaves, rewrite, same_numbers

TEXT = """main (float[n, 2] x) => (float[n, 2] y, float[n, 2] z) <float s = {0.5}, int8 c = {-5}, int8 d = {-5}> {
  q = QuantizeLinear (x, s, c)  y = DequantizeLinear (q, s, c)  z = DequantizeLinear (q, s, d)
}"""
DYNAMIC = """main (float[n, 2] x, float[1] s, int8[1] c) => (float[n, 2] y) {
  q = QuantizeLinear (x, s, c)  y = DequantizeLinear (q, s, c)
}"""
X = np.array([[-100, -1.3], [0.2, 90]], np.float32)


def test_known_zero_points() -> None:
    rewrite(
        TEXT,
        unsigned_activations,
        1,
        """main (float[n, 2] x) => (float[n, 2] y, float[n, 2] z) <float s = {0.5}, int8 c = {-5}, int8 d = {-5}, uint8 c_u8 = {123}> {
          q = QuantizeLinear (x, s, c_u8)  y = DequantizeLinear (q, s, c_u8)  z = DequantizeLinear (q, s, c_u8)
        }""",
    )
    same_numbers(TEXT, unsigned_activations, {"x": X})


def test_zero_points_computed_at_run_time() -> None:
    for zero in (-128, -1, 0, 127):
        feeds = {"x": X, "s": np.array([0.3], np.float32), "c": np.array([zero], np.int8)}
        same_numbers(DYNAMIC, unsigned_activations, feeds)


def test_integers_that_something_else_reads_stay() -> None:
    leaves(
        TEXT.replace(
            "z = DequantizeLinear (q, s, d)", "w = Clip (q)  z = DequantizeLinear (w, s, d)"
        ),
        unsigned_activations,
        "the int8 values have readers other than DequantizeLinear",
    )
    leaves(
        """main (float[n, 2] x, float s, int8 c, int8 d) => (float[n, 2] y) {
          q = QuantizeLinear (x, s, c)  y = DequantizeLinear (q, s, d)
        }""",
        unsigned_activations,
        "the int8 values have readers other than DequantizeLinear",
    )


def test_scales_of_channels_stay() -> None:
    leaves(
        """main (float[2, 2] x, float[2] s, int8[2] c) => (float[2, 2] y) {
          q = QuantizeLinear <axis = 0> (x, s, c)  y = DequantizeLinear <axis = 0> (q, s, c)
        }""",
        unsigned_activations,
    )
