"""Pieces that several families of element-wise lowerings are built from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from coreai_onnx.lower.builder import OpBuilder
from coreai_onnx.lower.promotion import promote_to_float
from coreai_onnx.lower.values import Number, Value, dims_of, is_float

_REDUCED = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def widen(op: OpBuilder, *operands: Any) -> list[Value]:
    """Return the operands in the dtype torch computes formulas of several steps in.

    float16 and bfloat16 become float32, integers and booleans the default floating dtype.
    """
    values = promote_to_float(op, *operands)
    if values[0].dtype in _REDUCED:
        return [op.cast(x, ir.DataType.FLOAT) for x in values]
    return values


def in_double(op: OpBuilder, *operands: Any) -> list[Value]:
    """Return the operands in float64, for formulas whose float32 rounding errors would show."""
    return [op.cast(x, ir.DataType.DOUBLE) for x in promote_to_float(op, *operands)]


def is_double(x: Value) -> bool:
    """Whether a value is float64, for which some ops of onnxruntime have no kernel."""
    return x.dtype == ir.DataType.DOUBLE


def horner(op: OpBuilder, x: Value, coefficients: Sequence[float]) -> Value:
    """Return the polynomial with these coefficients, highest power first, at ``x``."""
    result: Value = op.like(x, coefficients[0])
    for c in coefficients[1:]:
        result = op.Mul(result, x)
        if c != 0:
            result = op.Add(result, op.like(x, c))
    return result


def filled(op: OpBuilder, x: Value, value: Number, dtype: torch.dtype) -> Value:
    """Return a tensor of the shape of ``x`` that holds one value everywhere."""
    return op.expand(op.const(value, dtype), dims_of(x))


def truncated(op: OpBuilder, x: Value) -> Value:
    """Return ``x`` rounded towards zero."""
    if not is_float(x):
        return x
    result: Value = op.Where(op.Less(x, 0.0), op.Ceil(x), op.Floor(x))
    return result


def is_negative(op: OpBuilder, x: Value) -> Value:
    """Whether the sign bit is set; -0.0 has it (its reciprocal is below zero), a NaN counts as not."""
    below: Value = op.Less(x, op.like(x, 0))
    return op.Or(below, op.Less(op.Reciprocal(x), 0.0)) if is_float(x) else below


__all__ = ["filled", "horner", "in_double", "is_double", "is_negative", "truncated", "widen"]
