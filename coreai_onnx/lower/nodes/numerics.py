"""Building blocks of elementwise lowerings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.promotion import promote
from coreai_onnx.lower.nodes.values import Number, Value, dims_of, is_float, promoted_dtype


def widen(op: OpBuilder, *operands: Any) -> list[Value]:
    """Return the operands in torch's dtype for intermediate results.

    float16 and bfloat16 become float32, integers and booleans the default floating-point dtype.
    """
    target = promoted_dtype(*operands)
    if target.itemsize < 4 or not target.is_floating_point:
        target = torch.float32 if target.is_floating_point else torch.get_default_dtype()
    return promote(op, *operands, dtype=target)


def in_double(op: OpBuilder, *operands: Any) -> list[Value]:
    """Return the operands in float64, for formulas that are too inaccurate in float32."""
    return promote(op, *operands, dtype=torch.float64)


def is_double(x: Value) -> bool:
    """Whether a value is float64, for which some ops of onnxruntime have no kernel."""
    return x.dtype == ir.DataType.DOUBLE


def horner(op: OpBuilder, x: Value, coefficients: Sequence[float]) -> Value:
    """Return the polynomial with these coefficients, highest power first, at ``x``."""
    result = op.like(x, coefficients[0])
    for c in coefficients[1:]:
        result = op.Mul(result, x)
        if c != 0:
            result = op.Add(result, op.like(x, c))
    return result


def power_series(op: OpBuilder, x: Value, coefficients: Sequence[float]) -> Value:
    """Return Σ c[k] * x ** k for float64 numbers, as one product along a new axis."""
    powers = op.Pow(op.unsqueeze(x, [-1]), op.const(np.arange(len(coefficients), dtype=np.float64)))
    return weighted_sum(op, powers, coefficients)


def weighted_sum(op: OpBuilder, terms: Value, weights: Sequence[float] | np.ndarray) -> Value:
    """Return the sum of float64 terms times weights along their last axis.

    It is a product with a column, because onnxruntime's ReduceSum keeps the axis of an empty
    tensor, and its product of an empty tensor with a vector fails.
    """
    column = op.const(np.asarray(weights, dtype=np.float64)[:, None])
    return op.squeeze(op.MatMul(terms, column), [-1])


def filled_like(op: OpBuilder, x: Value, value: Number, dtype: torch.dtype) -> Value:
    """Return a tensor of the shape of ``x`` filled with one value."""
    return op.expand(op.const(value, dtype), dims_of(x))


def truncated(op: OpBuilder, x: Value) -> Value:
    """Return ``x`` rounded toward zero; numbers between -1 and 0 give -0.0."""
    if not is_float(x):
        return x
    return with_sign_of(op, op.Floor(op.Abs(x)), x)


def remainder_of_truncation(op: OpBuilder, a: Value, b: Value) -> Value:
    """Return a - trunc(a / b) * b, which has the sign of a."""
    if a.dtype == ir.DataType.INT64:  # onnxruntime computes the Mod of these in float64
        return op.Sub(a, op.Mul(op.Div(a, b), b))
    return op.Mod(a, b, fmod=1)


def is_negative(op: OpBuilder, x: Value) -> Value:
    """Whether the sign bit is set, also for -0.0, whose reciprocal is -inf; false for NaN."""
    below = op.Less(x, op.like(x, 0))
    return op.Or(below, op.Less(op.Reciprocal(x), 0.0)) if is_float(x) else below


def with_sign_of(op: OpBuilder, magnitude: Value, x: Value) -> Value:
    """Return a non-negative value with the sign of ``x``.

    It is multiplied by the sign, because Where in onnxruntime drops the sign of a zero.
    """
    sign = op.Where(is_negative(op, x), op.like(x, -1.0), op.like(x, 1.0))
    return op.Mul(magnitude, sign)


__all__ = [
    "filled_like",
    "horner",
    "in_double",
    "is_double",
    "is_negative",
    "power_series",
    "remainder_of_truncation",
    "truncated",
    "weighted_sum",
    "widen",
    "with_sign_of",
]
