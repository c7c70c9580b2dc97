"""Bodies of activations, with and without a gate or a bias."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from tests.bodies.body_ops import body_ops
from tests.lower.checking import run_model
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close

CASES = [
    Case("swiglu", ((9,), (9,))),
    Case("geglu", ((9,), (9,)), {"approximate": "none"}),
    Case("geglu", ((9,), (9,)), {"approximate": "tanh"}),
    *(
        Case("add_bias", ((9,), (9,)), {"activation": a})
        for a in ("none", "silu", "gelu_tanh", "sigmoid", "tanh", "exp")
    ),
]
GATES = torch.tensor([float("-inf"), -6e4, -20.0, -1.0, 0.0, 1e-3, 1.0, 20.0, 6e4])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c}{c.attributes}")
def test_large_and_small_gates(case: Case, dtype: torch.dtype) -> None:
    inputs = [GATES.to(dtype), torch.ones(9, dtype=dtype)]
    actual = run_model(case.model(dtype, dynamic=True), inputs)
    assert_close(actual, case.expected_outputs(inputs))


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c}{c.attributes}")
def test_dtypes_up_to_float32_share_a_body(case: Case) -> None:
    texts = {
        ir.to_proto(next(iter(case.model(d, dynamic=True).functions.values()))).SerializeToString()
        for d in (torch.float32, torch.float16, torch.bfloat16)
    }
    assert len(texts) == 1


X = [(2, 3)]
ONE_OP = {
    "gelu": ["Gelu"],
    "silu": ["Sigmoid", "Mul"],
    "hard_sigmoid": ["HardSigmoid"],
    "hard_swish": ["HardSigmoid", "Mul"],
    "log_softmax": ["LogSoftmax"],
    "softmax": ["Softmax"],
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
