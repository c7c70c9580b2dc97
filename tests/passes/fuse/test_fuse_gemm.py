from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.fuse.fuse_gemm import add_to_conv_bias, matmul_add_to_gemm
from tests.passes.rewriting import fuses, leaves

TEXT = "main (float[{x}] x) => (float[{z}] z{more}) <float[2, 3] w = {{1, 2, 3, 4, 5, 6}}, float[{b}] b = {{7, 8, 9}}> {{ {body} }}"


BODY = "float[n, 3] y = MatMul (x, w)  z = Add (b, y)"


PLAIN = {"x": "n, 2", "z": "n, 3", "b": "3", "more": "", "body": BODY}


@pytest.mark.parametrize("bias", ["3", "1, 3"])
def test_a_linear_layer_of_a_matrix_is_one_node(bias: str) -> None:
    names = {**PLAIN, "b": bias}
    fuses(
        TEXT.format(**names),
        matmul_add_to_gemm,
        1,
        TEXT.format(**{**names, "body": "z = Gemm (x, w, b)"}),
        {"x": np.array([[1, 2], [-3, 4]], np.float32)},
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"x": "m, n, 2", "z": "m, n, 3", "body": BODY.replace("[n", "[m, n")}, None),
        ({"b": "3, 1", "x": "3, 2", "z": "3, 3", "body": BODY.replace("[n", "[3")}, None),
        ({"more": ", float[n, 3] y"}, "something else reads the product"),
    ],
)
def test_other_sums_stay(change, reason) -> None:
    leaves(TEXT.format(**{**PLAIN, **change}), matmul_add_to_gemm, reason)


BIAS_TEXT = """main (float[n, 1, 2, 2] x) => (float[n, 2, 1, 1] y{more})
  <float[2, 1, 2, 2] w = {{1, 2, 3, 4, -1, -2, 5, 6}}, float[2] b = {{0.5, -1}}, float[{dims}] c = {{{values}}}> {{
  a = Conv ({conv})  y = Add (a, c)
}}"""


@pytest.mark.parametrize(
    ("conv", "dims", "values", "bias"),
    [
        ("x, w", "2, 1, 1", "3, 4", "3, 4"),
        ("x, w, b", "1, 2, 1, 1", "3, 4", "3.5, 3"),
        ("x, w", "1", "3", "3, 3"),
    ],
)
def test_a_constant_per_channel_is_a_bias(conv, dims, values, bias) -> None:
    fuses(
        BIAS_TEXT.format(conv=conv, dims=dims, values=values, more=""),
        add_to_conv_bias,
        1,
        f"""main (float[n, 1, 2, 2] x) => (float[n, 2, 1, 1] y)
          <float[2, 1, 2, 2] w = {{1, 2, 3, 4, -1, -2, 5, 6}}, float[2] "w.bias" = {{{bias}}}> {{
          y = Conv (x, w, "w.bias")
        }}""",
        {"x": np.arange(8, dtype=np.float32).reshape(2, 1, 2, 2)},
    )


@pytest.mark.parametrize(
    ("dims", "values", "more", "reason"),
    [
        ("1, 2", "3, 4", "", "the constant must have one value per channel"),
        ("2, 1, 1", "3, 4", ", float[n, 2, 1, 1] a", "something else reads the convolution"),
    ],
)
def test_other_sums_of_convolutions_stay(dims, values, more, reason) -> None:
    text = BIAS_TEXT.format(conv="x, w", dims=dims, values=values, more=more)
    leaves(text, add_to_conv_bias, reason)
