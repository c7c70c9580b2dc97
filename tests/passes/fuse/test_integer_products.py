from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.fuse.integer_products import integer_products
from tests.passes.rewriting import fuses, leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

WEIGHT = "<int8[2, 3] w = {1, -2, 3, 4, -5, 6}, float[3] t = {1, 2, 3}"
DYNAMIC = f"""main (float[n, 2] x) => (float[n, 3] y) {WEIGHT}, uint8[n, 2] i, float s, uint8 z> {{
  i, s, z = DynamicQuantizeLinear (x)  uint8[n, 2] q = QuantizeLinear (x, s, z)  a = DequantizeLinear (q, s, z)
  d = DequantizeLinear <axis = 1> (w, t)  y = MatMul (a, d)
}}"""
CHOSEN = f"""main (float[n, 2] x, float[1] s, uint8[1] z) => (float[n, 3] y) {WEIGHT}, float[3] b = {{1, 2, 3}}, int8[3] c = {{1, 0, -1}}> {{
  uint8[n, 2] q = QuantizeLinear (x, s, z)  a = DequantizeLinear (q, s, z)
  d = DequantizeLinear <axis = 1> (w, t, c)  y = Gemm (a, d, b)
}}"""
TURNED = """main (float[n, 2] x, float s, uint8 z) => (float[n, 3] y) <int8[3, 2] w = {1, -2, 3, 4, -5, 6}, float[3] t = {1, 2, 3}> {
  uint8[n, 2] q = QuantizeLinear (x, s, z)  a = DequantizeLinear (q, s, z)
  d = DequantizeLinear <axis = 0> (w, t)  y = Gemm <transB = 1> (a, d)
}"""
VIEWED = CHOSEN.replace(
    "a = DequantizeLinear (q, s, z)",
    "c0 = DequantizeLinear (q, s, z)  k = Constant <value_ints = [-1, 2]> ()  a = Reshape (c0, k)",
)
X = np.array([[-1, 1], [0.25, 3], [5, -2]], np.float32)
CHOICE = {"s": np.array([0.1], np.float32), "z": np.array([20], np.uint8)}


def test_a_product_of_dynamically_quantized_values() -> None:
    fuses(
        DYNAMIC,
        integer_products,
        1,
        f"""main (float[n, 2] x) => (float[n, 3] y) {WEIGHT}> {{
          i, s, z = DynamicQuantizeLinear (x)
          y_matmulinteger = MatMulInteger (i, w, z)  y_cast = Cast <to = 1> (y_matmulinteger)
          y_mul = Mul (s, t)  y = Mul (y_cast, y_mul)
        }}""",
        {"x": X},
    )


@pytest.mark.parametrize(("text", "shape"), [(CHOSEN, (1,)), (TURNED, ()), (VIEWED, (1,))])
def test_a_product_of_values_with_chosen_scales(text: str, shape: tuple[int, ...]) -> None:
    feeds = {name: value.reshape(shape) for name, value in CHOICE.items()}
    model = parse(text)
    assert run_passes(model, [integer_products]).total == 1
    assert "MatMulInteger" in {node.op_type for node in model.graph}
    (wanted,), (got,) = run(parse(text), {"x": X, **feeds}), run(model, {"x": X, **feeds})
    assert_close(got, wanted)


@pytest.mark.parametrize(
    "text",
    [
        CHOSEN.replace(", float[1] s, uint8[1] z", "").replace(
            "float[3] b", "float s = {0.5}, uint8 z = {3}, float[3] b"
        ),  # known scales: onnxruntime recognizes them
        CHOSEN.replace("Gemm (a", "Gemm <alpha = 2.0> (a"),
        CHOSEN.replace("Gemm (a", "Gemm <transA = 1> (a").replace("[n, 2]", "[2, n]"),
    ],
)
def test_products_that_stay(text: str) -> None:
    leaves(text, integer_products)


def test_signed_values_stay() -> None:
    leaves(
        CHOSEN.replace("uint8", "int8"),
        integer_products,
        "the activations are not uint8 with one scale",
    )


def test_scales_of_rows_stay() -> None:
    leaves(
        TURNED.replace("axis = 0", "axis = 1").replace(
            "float[3] t = {1, 2, 3}", "float[2] t = {1, 2}"
        ),
        integer_products,
        "the weight must have one scale, or one per column",
    )
