"""Comparisons, elementwise maximum and minimum, clamping, and tests for NaN and infinity."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.numerics import (
    filled_like,
    in_double,
    is_negative,
    truncated,
    with_sign_of,
)
from coreai_onnx.lower.nodes.promotion import promote, promote_to_float
from coreai_onnx.lower.nodes.values import Number, Value, dtype_of, is_bool, is_float
from coreai_onnx.lower.walk.registry import lowers

_COMPARISONS = {
    "eq": "Equal",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
    "lt": "Less",
    "le": "LessOrEqual",
}


def compare(op: OpBuilder, self: Value, other: Value | Number, *, op_type: str) -> Value:
    """self <op> other, in torch's common dtype."""
    return op.node(op_type, *promote(op, self, other))


for _name, _op_type in _COMPARISONS.items():
    _overloads = (f"aten.{_name}.Tensor", f"aten.{_name}.Scalar", f"prims.{_name}.default")
    lowers(*_overloads, op_type=_op_type)(compare)


@lowers("aten.ne.Tensor", "aten.ne.Scalar", "prims.ne.default")
def ne(op: OpBuilder, self: Value, other: Value | Number) -> Value:
    """self != other; a NaN is unequal to everything."""
    self, other = promote(op, self, other)
    return op.Xor(self, other) if is_bool(self) else op.Not(op.Equal(self, other))


# ---------------------------------------------------------------- maximum and minimum
_LARGER: dict[str, Any] = {"on_numbers": "Max", "on_bools": "Or"}
_SMALLER: dict[str, Any] = {"on_numbers": "Min", "on_bools": "And"}


@lowers("aten.maximum.default", "aten.max.other", "prims.maximum.default", **_LARGER)
@lowers("aten.minimum.default", "aten.min.other", "prims.minimum.default", **_SMALLER)
@lowers("aten.fmax.default", "prims.fmax.default", ignore_nan=True, **_LARGER)
@lowers("aten.fmin.default", "prims.fmin.default", ignore_nan=True, **_SMALLER)
def extreme(
    op: OpBuilder,
    self: Value,
    other: Value,
    *,
    on_numbers: str,
    on_bools: str,
    ignore_nan: bool = False,
) -> Value:
    """The larger or smaller of two; NaN if one is, or the other one of a NaN."""
    a, b = promote(op, self, other)
    if ignore_nan and is_float(a):
        a, b = op.Where(op.IsNaN(a), b, a), op.Where(op.IsNaN(b), a, b)
    return op.node(on_bools if is_bool(a) else on_numbers, a, b)


# ---------------------------------------------------------------- clamping
@lowers("aten.clamp.default", "aten.clamp.Tensor", "aten.clip.default", "aten.clip.Tensor")
@lowers("aten.clamp_min.default", "aten.clamp_min.Tensor")
@lowers("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp(
    op: OpBuilder, self: Value, min: Value | Number | None = None, max: Value | Number | None = None
) -> Value:
    """self, at least min, then at most max; NaN if any of them is NaN."""
    limits = [x for x in (min, max) if x is not None]
    x, *bounds = promote(op, self, *limits)
    if is_bool(x):
        return _clamp_bool(op, x, bounds, has_min=min is not None)
    low = bounds.pop(0) if min is not None else None
    high = bounds.pop(0) if max is not None else None
    if low is not None and high is not None and all(_is_plain(b) for b in limits):
        return op.Clip(x, low, high)  # with one bound, Clip would also clamp infinities
    x = x if low is None else op.Max(x, low)
    return x if high is None else op.Min(x, high)


def _is_plain(x: Any) -> bool:
    """Whether a bound is a number for Clip (Clip does not propagate a NaN bound)."""
    return isinstance(x, int | float) and not math.isnan(x)


def _clamp_bool(op: OpBuilder, x: Value, bounds: list[Value], *, has_min: bool) -> Value:
    if has_min:
        x = op.Or(x, bounds.pop(0))
    return op.And(x, bounds[0]) if bounds else x


# ---------------------------------------------------------------- NaN and infinity
@lowers("aten.isnan.default", test=lambda op, x: op.IsNaN(x))
@lowers("aten.isinf.default", test=lambda op, x: op.IsInf(x))
@lowers("aten.isposinf.default", test=lambda op, x: op.Equal(x, math.inf))
@lowers("aten.isneginf.default", test=lambda op, x: op.Equal(x, -math.inf))
def is_special(op: OpBuilder, self: Value, *, test: Callable[[OpBuilder, Value], Value]) -> Value:
    """Whether an element is NaN or infinite; false for integers."""
    return test(op, self) if is_float(self) else filled_like(op, self, False, torch.bool)


@lowers("aten.isfinite.default", "prims.isfinite.default")
def isfinite(op: OpBuilder, self: Value) -> Value:
    """Whether an element is neither NaN nor infinite."""
    if not is_float(self):
        return filled_like(op, self, True, torch.bool)
    # False for NaN too, which is not less than anything.
    return op.Less(op.Abs(self), math.inf)


@lowers("aten.nan_to_num.default")
def nan_to_num(
    op: OpBuilder,
    self: Value,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Value:
    """self with NaN replaced by ``nan`` (0), infinities by the given or largest finite numbers."""
    if not is_float(self):
        return self
    limits = torch.finfo(dtype_of(self))
    numbers = op.Where(op.IsNaN(self), op.like(self, nan or 0.0), self)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    if posinf is None and neginf is None:
        # All finite numbers are within these limits, so that only infinities change.
        return op.Clip(numbers, low, high)
    numbers = op.Where(op.Equal(numbers, math.inf), op.like(self, high), numbers)
    return op.Where(op.Equal(self, -math.inf), op.like(self, low), numbers)


@lowers("aten.isclose.default")
def isclose(
    op: OpBuilder,
    self: Value,
    other: Value,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    *,
    equal_nan: bool = False,
) -> Value:
    """Whether self == other, or abs(self - other) <= atol + rtol * abs(other) and is finite."""
    self, other = promote(op, self, other)
    close = op.Equal(self, other)
    if equal_nan and is_float(self):
        close = op.Or(close, op.And(op.IsNaN(self), op.IsNaN(other)))
    if rtol == 0 and atol == 0:
        return close
    a, b = promote_to_float(op, self, other)
    error = op.Abs(op.Sub(a, b))
    allowed = op.Add(op.Abs(op.Mul(b, rtol)), atol)
    # An infinite other allows any error, but only equal infinities are close.
    near = op.And(op.LessOrEqual(error, allowed), op.Less(error, math.inf))
    return op.Or(close, near)


# ---------------------------------------------------------------- selection and sign
@lowers("prims.where.default", renamed={"condition": "pred", "self": "a", "other": "b"})
@lowers("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def where(op: OpBuilder, condition: Value, self: Value | Number, other: Value | Number) -> Value:
    """Self where the condition holds, other elsewhere."""
    a, b = promote(op, self, other)
    return op.Where(op.cast(condition, torch.bool), a, b)


@lowers("aten.heaviside.default")
def heaviside(op: OpBuilder, self: Value, values: Value) -> Value:
    """0 below zero and for NaN, 1 above zero, ``values`` at zero."""
    self, values = promote(op, self, values)
    if is_bool(self):
        return op.Or(self, values)
    step = op.cast(op.Greater(self, op.like(self, 0)), dtype_of(self))
    return op.Where(op.Equal(self, op.like(self, 0)), values, step)


@lowers("aten.signbit.default", "prims.signbit.default")
def signbit(op: OpBuilder, self: Value) -> Value:
    """Whether the sign is negative, that of -0.0 included."""
    return filled_like(op, self, False, torch.bool) if is_bool(self) else is_negative(op, self)


@lowers("aten.copysign.Tensor", "aten.copysign.Scalar")
def copysign(op: OpBuilder, self: Value, other: Value | Number) -> Value:
    """abs(self) with the sign of other."""
    self, other = promote_to_float(op, self, other)
    return with_sign_of(op, op.Abs(self), other)


@lowers("aten.ldexp.Tensor")
def ldexp(op: OpBuilder, self: Value, other: Value) -> Value:
    """self * 2 ** other."""
    x, power = promote_to_float(op, self, other)
    x, power = in_double(op, x, power)
    half = truncated(op, op.Mul(power, 0.5))  # in two steps, neither of which overflows
    two = op.like(x, 2.0)
    return op.Mul(op.Mul(x, op.Pow(two, half)), op.Pow(two, op.Sub(power, half)))
