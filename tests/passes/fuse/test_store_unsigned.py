from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.fuse.store_unsigned import unsigned_activations, unsigned_weights
from tests.passes.rewriting import fuses, leaves, rewrite, same_numbers

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


INTEGER = """main (uint8[n, 2] q, uint8 z) => (int32[n, 3] y) <int8[2, 3] w = {127, -128, 3, 4, -65, 6}> {
  y = MatMulInteger (q, w, z)
}"""


STATIC = """main (float[n, 2] x) => (float[n, 3] y) <int8[2, 3] w = {127, -2, 3, 4, -5, 6}, float[3] s = {1, 2, 3}, float t = {0.5}, uint8 u = {3}> {
  q = QuantizeLinear (x, t, u)  d = DequantizeLinear (q, t, u)
  v = DequantizeLinear <axis = 1> (w, s)  y = MatMul (d, v)
}"""


Q = np.array([[255, 255], [0, 7]], np.uint8)


WEIGHTS_X = np.array([[-100, 1.3], [126, 126]], np.float32)


def test_integer_products() -> None:
    fuses(
        INTEGER,
        unsigned_weights,
        1,
        """main (uint8[n, 2] q, uint8 z) => (int32[n, 3] y) <uint8[2, 3] w_u8 = {255, 0, 131, 132, 63, 134}, uint8 zero_u8 = {128}> {
          y = MatMulInteger (q, w_u8, z, zero_u8)
        }""",
        {"q": Q, "z": np.array(3, np.uint8)},
    )


def test_dequantized_weights() -> None:
    fuses(
        STATIC,
        unsigned_weights,
        1,
        """main (float[n, 2] x) => (float[n, 3] y) <float[3] s = {1, 2, 3}, float t = {0.5}, uint8 u = {3}, uint8[2, 3] w_u8 = {255, 126, 131, 132, 123, 134}, uint8[3] zero_u8 = {128, 128, 128}> {
          q = QuantizeLinear (x, t, u)  d = DequantizeLinear (q, t, u)
          v = DequantizeLinear <axis = 1> (w_u8, s, zero_u8)  y = MatMul (d, v)
        }""",
        {"x": WEIGHTS_X},
    )


def test_zero_points() -> None:
    text = STATIC.replace("(w, s)", "(w, s, c)").replace(
        "float t =", "int8[3] c = {-128, 0, 127}, float t ="
    )
    rewrite(
        text,
        unsigned_weights,
        1,
        """main (float[n, 2] x) => (float[n, 3] y) <int8[2, 3] w = {127, -2, 3, 4, -5, 6}, float[3] s = {1, 2, 3}, int8[3] c = {-128, 0, 127}, float t = {0.5}, uint8 u = {3}, uint8[2, 3] w_u8 = {255, 126, 131, 132, 123, 134}, uint8[3] c_u8 = {0, 128, 255}> {
          q = QuantizeLinear (x, t, u)  d = DequantizeLinear (q, t, u)
          v = DequantizeLinear <axis = 1> (w_u8, s, c_u8)  y = MatMul (d, v)
        }""",
    )
    same_numbers(text, unsigned_weights, {"x": WEIGHTS_X})


@pytest.mark.parametrize(
    "text",
    [
        INTEGER.replace("[2, 3] w", "[3, 2] w").replace(
            "y = Mat", "int8[2, 3] t = Transpose <perm = [1, 0]> (w)  y = Mat"
        ).replace("(q, w", "(q, t"),
        INTEGER.replace("y = MatMulInteger (q, w, z)", "a = Cast <to = 6> (w)  c = ReduceSum <keepdims = 0> (a)  b = MatMulInteger (q, w, z)  y = Add (b, c)"),
        INTEGER.replace(
            "y = MatMulInteger (q, w, z)",
            "a = MatMulInteger (q, w, z)  b = MatMulInteger (q, w)  y = Add (a, b)",
        ),
        INTEGER.replace(" <int8[2, 3] w = {127, -128, 3, 4, -65, 6}>", "").replace(
            "uint8 z)", "uint8 z, int8[2, 3] w)"
        ),
    ],
    ids=["transposed", "read by another", "shared", "computed"],
)  # fmt: skip
def test_the_sums_are_equal(text: str) -> None:
    feeds = {"q": Q, "z": np.array(3, np.uint8)}
    if "int8[2, 3] w)" in text:
        feeds["w"] = np.array([[127, -128, 3], [4, -65, 6]], np.int8)
    same_numbers(text, unsigned_weights, feeds)


def test_a_shared_weight_is_stored_once() -> None:
    text = INTEGER.replace(
        "y = MatMulInteger (q, w, z)",
        "a = MatMulInteger (q, w, z)  b = MatMulInteger (q, w)  y = Add (a, b)",
    )
    rewrite(
        text,
        unsigned_weights,
        2,
        """main (uint8[n, 2] q, uint8 z) => (int32[n, 3] y) <int8[2, 3] w = {127, -128, 3, 4, -65, 6}, uint8[2, 3] w_u8 = {255, 0, 131, 132, 63, 134}, uint8 zero_u8 = {128}, uint8 zero_u8_1 = {128}> {
          a = MatMulInteger (q, w_u8, z, zero_u8)  b = MatMulInteger (q, w_u8, , zero_u8_1)  y = Add (a, b)
        }""",
    )


def test_weights_of_seven_bits_stay() -> None:
    small = INTEGER.replace("127, -128, 3, 4, -65", "64, -64, 3, 4, 0")
    leaves(small, unsigned_weights, "the weights are within ±64")
    leaves(STATIC.replace("127", "64"), unsigned_weights, "the weights are within ±64")


@pytest.mark.parametrize(
    "text",
    [
        INTEGER.replace("uint8[n, 2] q, uint8 z", "int8[n, 2] q, int8 z"),  # not the product
        STATIC.replace("MatMul (d, v)", "MatMul (x, v)"),  # the other factor is not quantized
    ],
)
def test_products_that_stay(text: str) -> None:
    leaves(text, unsigned_weights)
