"""Bodies of activations: one op where ONNX has it, float32 inside; numbers are in the matrix."""

from __future__ import annotations

import pytest
import torch

from tests.bodies.body_ops import body_ops

X = [(2, 3)]
ONE_OP = {
    "gelu": ["Gelu"],
    "silu": ["Sigmoid", "Mul"],
    "hard_sigmoid": ["HardSigmoid"],
    "hard_swish": ["HardSigmoid", "Mul"],
    "log_softmax": ["LogSoftmax"],
}


@pytest.mark.parametrize(("name", "ops"), ONE_OP.items())
def test_float32_has_no_casts_and_narrow_dtypes_are_widened(name: str, ops: list[str]) -> None:
    assert body_ops(name, X) == ops
    for narrow in (torch.float16, torch.bfloat16):
        assert body_ops(name, X, dtype=narrow) == ["Cast", *ops, "Cast"]


def test_gelu_is_spelled_out_where_there_is_none() -> None:
    assert "Erf" in body_ops("gelu", X, opset=18)
    assert "Tanh" in body_ops("gelu", X, {"approximate": "tanh"}, opset=18)
    assert "Erf" not in body_ops("gelu", X, dtype=torch.float64)  # a float32 kernel only


def test_hard_sigmoid_of_float64_is_its_formula() -> None:
    assert "Clip" in body_ops("hard_sigmoid", X, dtype=torch.float64)
