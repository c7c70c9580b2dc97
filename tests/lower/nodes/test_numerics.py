"""The pieces of element-wise formulas, run by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from coreai_onnx.lower.nodes import numerics
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.nodes.values import Value, dtype_of, set_dims
from tests.lower.checking import run_model
from tests.support.tolerances import assert_close

INF, NAN = float("inf"), float("nan")


def compute(body: Callable[..., Value], *inputs: torch.Tensor) -> Any:
    """Return what a piece gives for some inputs in onnxruntime."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 23}, name="main")
    values = []
    for i, x in enumerate(inputs):
        value = ir.Value(name=f"x{i}", type=ir.TensorType(ir.tensor(x).dtype))
        values.append(set_dims(value, tuple(x.shape)))
    graph.inputs.extend(values)
    result = body(OpBuilder(Scope(graph, Names()), 23), *values)
    graph.outputs.append(result)
    (got,) = run_model(ir.Model(graph, ir_version=10), inputs)
    return got


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float64, torch.float64),
        (torch.int64, torch.float32),
        (torch.bool, torch.float32),
    ],
    ids=str,
)
def test_widen(dtype, wide):
    def body(op: OpBuilder, x: Value) -> Value:
        (result,) = numerics.widen(op, x)
        assert dtype_of(result) == wide
        return op.Identity(result)

    assert_close(compute(body, torch.tensor([0, 1]).to(dtype)), torch.tensor([0, 1]).to(wide))


def test_widen_keeps_the_digits_of_a_number():
    def body(op: OpBuilder, x: Value) -> Value:
        a, b = numerics.widen(op, x, 0.3)
        return op.Mul(a, b)

    assert_close(compute(body, torch.ones(2).half()), torch.full((2,), 0.3))


@pytest.mark.parametrize("evaluate", [numerics.horner, numerics.power_series])
def test_polynomials(evaluate):
    coefficients = [2.0, 0.0, -3.0, 0.5]
    x = torch.tensor([0.0, 1.0, -2.5], dtype=torch.float64)
    expected = np.polynomial.polynomial.polyval(x.numpy(), coefficients)
    given = coefficients[::-1] if evaluate is numerics.horner else coefficients
    assert_close(compute(lambda op, x: evaluate(op, x, given), x), expected)


@pytest.mark.parametrize("shape", [(3,), (0, 3), (2, 0, 3), (2, 2, 3)], ids=str)
def test_weighted_sum(shape):
    x = torch.rand(shape, dtype=torch.float64)
    weights = [1.0, -2.0, 0.5]
    got = compute(lambda op, x: numerics.weighted_sum(op, x, weights), x)
    assert_close(got, (x * torch.tensor(weights, dtype=torch.float64)).sum(-1))


def test_signs():
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, INF, -INF, NAN])
    assert_close(compute(numerics.is_negative, x), torch.tensor([0, 1, 0, 1, 0, 1, 0]).bool())
    size = torch.zeros(7)
    got = compute(numerics.with_sign_of, size, x)
    assert_close(np.signbit(got), np.array([0, 1, 0, 1, 0, 1, 0], dtype=bool))


def test_truncation():
    x = torch.tensor([1.7, -1.7, 0.2, INF, NAN])
    assert_close(compute(numerics.truncated, x), x.trunc())
    a = torch.tensor([7, -7, 2**62 + 1, -(2**63)])
    b = torch.tensor([3, 3, 5, 7])
    assert_close(compute(numerics.remainder_of_truncation, a, b), torch.fmod(a, b))


def test_filled_like():
    got = compute(lambda op, x: numerics.filled_like(op, x, 2, torch.int8), torch.rand(2, 3))
    assert_close(got, torch.full((2, 3), 2, dtype=torch.int8))


def test_in_double():
    def body(op: OpBuilder, x: Value) -> Value:
        (result,) = numerics.in_double(op, x)
        assert numerics.is_double(result)
        assert not numerics.is_double(x)
        return op.Identity(result)

    assert_close(compute(body, torch.tensor([1, 2])), torch.tensor([1.0, 2.0], dtype=torch.float64))
