from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.fuse.fuse_gemm import matmul_add_to_gemm
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
