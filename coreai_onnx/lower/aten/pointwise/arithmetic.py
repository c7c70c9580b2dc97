"""Sums, products, quotients and remainders, with torch's type promotion."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.numerics import remainder_of_truncation, truncated, widen
from coreai_onnx.lower.nodes.promotion import promote, promote_to_float
from coreai_onnx.lower.nodes.values import Number, Value, dtype_of, is_bool, is_float
from coreai_onnx.lower.walk.registry import lowers


def _scaled(op: OpBuilder, x: Value, factor: Number) -> Value:
    """factor * x; no node for a factor of one."""
    if factor == 1:
        return x
    if is_bool(x):
        return op.And(x, bool(factor))
    return op.Mul(x, factor)


@lowers("aten.add.Tensor", "aten.add.Scalar", "prims.add.default")
def add(op: OpBuilder, self: Value, other: Value | Number, *, alpha: Number = 1) -> Value:
    """self + alpha * other; on booleans, or."""
    self, other = promote(op, self, other)
    other = _scaled(op, other, alpha)
    return op.Or(self, other) if is_bool(self) else op.Add(self, other)


@lowers("aten.sub.Tensor", "aten.sub.Scalar", "prims.sub.default")
def sub(op: OpBuilder, self: Value, other: Value | Number, *, alpha: Number = 1) -> Value:
    """self - alpha * other."""
    self, other = promote(op, self, other)
    return op.Sub(self, _scaled(op, other, alpha))


@lowers("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(op: OpBuilder, self: Value, other: Value | Number, *, alpha: Number = 1) -> Value:
    """other - alpha * self."""
    self, other = promote(op, self, other)
    return op.Sub(other, _scaled(op, self, alpha))


@lowers("aten.mul.Tensor", "aten.mul.Scalar", "prims.mul.default")
def mul(op: OpBuilder, self: Value, other: Value | Number) -> Value:
    """self * other; on booleans, and."""
    self, other = promote(op, self, other)
    return op.And(self, other) if is_bool(self) else op.Mul(self, other)


@lowers("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor", "aten.true_divide.Scalar")
def div(op: OpBuilder, self: Value, other: Value | Number) -> Value:
    """self / other, floating-point also for integers."""
    self, other = promote_to_float(op, self, other)
    return op.Div(self, other)


@lowers("prims.div.default")
def prims_div(op: OpBuilder, self: Value, other: Value) -> Value:
    """self / other, truncated for integers."""
    return op.Div(self, other)


@lowers("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(
    op: OpBuilder, self: Value, other: Value | Number, *, rounding_mode: str | None
) -> Value:
    """self / other, exact (None), truncated ("trunc") or rounded down ("floor")."""
    if rounding_mode is None:
        return div(op, self, other)
    if rounding_mode == "floor":
        return floor_divide(op, self, other)
    self, other = promote(op, self, other)
    if is_bool(self):
        return op.And(self, other)
    return truncated(op, op.Div(self, other))


@lowers("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(op: OpBuilder, self: Value, other: Value | Number) -> Value:
    """The largest integer not above self / other."""
    divisor = other
    self, other = promote(op, self, other)
    if is_float(self):
        return _floor_quotient(op, self, other, divisor)
    if self.dtype in (ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32):
        return op.Div(self, other)
    if _is_power_of_two(divisor):
        return op.Div(op.Sub(self, op.Mod(self, other)), other)  # cannot wrap around
    # Div truncates, whereas the remainder of Mod has the sign of the divisor. Where their
    # remainders differ, the quotient is one too high.
    quotient = op.Div(self, other)
    truncated_rest = op.Sub(self, op.Mul(quotient, other))
    carried = op.Not(op.Equal(op.Mod(self, other), truncated_rest))
    return op.Sub(quotient, op.cast(carried, dtype_of(self)))


def _floor_quotient(op: OpBuilder, self: Value, other: Value, divisor: Value | Number) -> Value:
    """Python's float floor division, from the exact remainder: 1.0 // 0.1 is 9, not 10."""
    wide, divider = widen(op, self, other)
    rest = op.Mod(wide, divider, fmod=1)
    carried = op.And(op.Not(op.Equal(rest, 0.0)), op.Xor(op.Less(divider, 0.0), op.Less(rest, 0.0)))
    quotient = op.Round(op.Div(op.Sub(wide, rest), divider))
    quotient = op.Sub(quotient, op.cast(carried, dtype_of(wide)))
    if isinstance(divisor, int | float) and divisor != 0:
        return op.cast(quotient, dtype_of(self))
    # The remainder of a division by zero is NaN; its quotient may be infinite.
    quotient = op.Where(op.Equal(divider, 0.0), op.Div(wide, divider), quotient)
    return op.cast(quotient, dtype_of(self))


def _is_power_of_two(x: Any) -> bool:
    return isinstance(x, int) and x > 0 and x & (x - 1) == 0


@lowers(
    "aten.remainder.Tensor",
    "aten.remainder.Scalar",
    "aten.remainder.Scalar_Tensor",
    "prims.remainder.default",
)
def remainder(op: OpBuilder, self: Value | Number, other: Value | Number) -> Value:
    """self - floor(self / other) * other: the remainder with the sign of the divisor."""
    self, other = promote(op, self, other)
    if not is_float(self):
        return op.Mod(self, other)
    rest = op.Mod(self, other, fmod=1)
    carried = op.And(op.Not(op.Equal(rest, 0.0)), op.Xor(op.Less(other, 0.0), op.Less(rest, 0.0)))
    return op.Where(carried, op.Add(rest, other), rest)


@lowers("aten.fmod.Tensor", "aten.fmod.Scalar", "prims.fmod.default")
def fmod(op: OpBuilder, self: Value, other: Value | Number) -> Value:
    """self - trunc(self / other) * other: the remainder with the sign of the dividend."""
    self, other = promote(op, self, other)
    return remainder_of_truncation(op, self, other)


@lowers("aten.addcmul.default")
def addcmul(
    op: OpBuilder, self: Value, tensor1: Value, tensor2: Value, *, value: Number = 1
) -> Value:
    """self + value * tensor1 * tensor2."""
    self, tensor1, tensor2 = promote(op, self, tensor1, tensor2)
    if is_bool(self):
        return op.Or(self, _scaled(op, op.And(tensor1, tensor2), value))
    if is_float(self):
        self, tensor1, tensor2 = widen(op, self, tensor1, tensor2)
    return op.Add(self, op.Mul(_scaled(op, tensor1, value), tensor2))


@lowers("aten.addcdiv.default")
def addcdiv(
    op: OpBuilder, self: Value, tensor1: Value, tensor2: Value, *, value: Number = 1
) -> Value:
    """self + value * tensor1 / tensor2."""
    self, tensor1, tensor2 = widen(op, self, tensor1, tensor2)
    return op.Add(self, op.Div(_scaled(op, tensor1, value), tensor2))
