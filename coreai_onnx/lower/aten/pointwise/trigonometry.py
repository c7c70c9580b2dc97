"""Circular and hyperbolic functions and their inverses.

For most of them onnxruntime has float32 kernels only; in float64 they are computed from sine,
cosine, exponential, logarithm and square root.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from coreai_onnx.lower.aten.pointwise.unary_math import log1p_of
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.numerics import is_double, is_negative, widen, with_sign_of
from coreai_onnx.lower.nodes.promotion import promote_to_float
from coreai_onnx.lower.nodes.values import Value
from coreai_onnx.lower.walk.registry import lowers


def _in_float64(formula: Callable[[OpBuilder, Value], Value]) -> Callable[..., Value]:
    """Register the lowering of an op: the ONNX op of that name, or this formula for float64."""
    name = formula.__name__

    @lowers(f"aten.{name}.default", f"prims.{name}.default")
    def lowering(op: OpBuilder, self: Value) -> Value:
        (x,) = promote_to_float(op, self)
        return formula(op, x) if is_double(x) else op.node(name.title(), x)

    lowering.__doc__ = formula.__doc__
    return lowering


@_in_float64
def tan(op: OpBuilder, x: Value) -> Value:
    """sin(x) / cos(x)."""
    return op.Div(op.Sin(x), op.Cos(x))


def atan_of(op: OpBuilder, x: Value) -> Value:
    """Return the arc tangent; float64 by one step of correction from the float32 kernel.

    With y near atan(x), the remainder is atan(d), d = (x cos y - sin y) / (cos y + x sin y); d is
    about 1e-7, so that d equals the remainder to 1e-21.
    """
    if not is_double(x):
        return op.Atan(x)
    # float32 overflows at 3.4e38; beyond 1e30 the result is ±π/2 to the last bit.
    near = op.Clip(x, -1e30, 1e30)
    y = op.Cast(op.Atan(op.Cast(near, to=int(ir.DataType.FLOAT))), to=int(ir.DataType.DOUBLE))
    sine, cosine = op.Sin(y), op.Cos(y)
    rest = op.Div(op.Sub(op.Mul(near, cosine), sine), op.Add(cosine, op.Mul(near, sine)))
    return op.Add(y, rest)


@lowers("aten.atan.default", "prims.atan.default")
def atan(op: OpBuilder, self: Value) -> Value:
    """Arc tangent."""
    return atan_of(op, promote_to_float(op, self)[0])


@_in_float64
def asin(op: OpBuilder, x: Value) -> Value:
    """Arc sine: atan(x / sqrt((1 - x)(1 + x)))."""
    return atan_of(op, op.Div(x, op.Sqrt(op.Mul(op.Sub(1.0, x), op.Add(x, 1.0)))))


@_in_float64
def acos(op: OpBuilder, x: Value) -> Value:
    """Arc cosine: 2 atan(sqrt((1 - x) / (1 + x)))."""
    return op.Mul(atan_of(op, op.Sqrt(op.Div(op.Sub(1.0, x), op.Add(x, 1.0)))), 2.0)


@lowers("aten.atan2.default", "prims.atan2.default")
def atan2(op: OpBuilder, self: Value, other: Value) -> Value:
    """The angle of the point (other, self), in [-pi, pi], signs of zeros included."""
    y, x = widen(op, self, other)
    both_zero = op.And(op.Equal(y, 0.0), op.Equal(x, 0.0))
    both_infinite = op.And(op.IsInf(y), op.IsInf(x))
    ratio = op.Div(op.Abs(y), op.Abs(x))
    ratio = op.Where(both_zero, op.like(x, 0.0), ratio)
    # As in C, an infinite point is on a diagonal.
    ratio = op.Where(both_infinite, op.like(x, 1.0), ratio)
    angle = atan_of(op, ratio)
    angle = op.Where(is_negative(op, x), op.Sub(math.pi, angle), angle)
    return with_sign_of(op, angle, y)


@lowers("aten.angle.default")
def angle(op: OpBuilder, self: Value) -> Value:
    """The angle of real numbers: pi below zero, 0 above, NaN for NaN."""
    (x,) = promote_to_float(op, self)
    turned = op.Where(op.Less(x, 0.0), op.like(x, math.pi), op.like(x, 0.0))
    return op.Where(op.IsNaN(x), x, turned)


@_in_float64
def sinh(op: OpBuilder, x: Value) -> Value:
    """Hyperbolic sine: (e + e / (e + 1)) / 2 with the sign of x, where e = exp(|x|) - 1."""
    size = op.Abs(x)
    half = op.Tanh(op.Mul(size, 0.5))
    rise = op.Mul(half, op.Add(op.Exp(size), 1.0))
    grown = op.Mul(
        # inf / inf is NaN; the quotient tends to 1.
        op.Add(rise, op.Where(op.IsInf(rise), op.like(x, 1.0), op.Div(rise, op.Add(rise, 1.0)))),
        0.5,
    )
    return op.Where(op.Less(x, 0.0), op.Neg(grown), grown)


@_in_float64
def cosh(op: OpBuilder, x: Value) -> Value:
    """Hyperbolic cosine: (exp(x) + exp(-x)) / 2."""
    return op.Mul(op.Add(op.Exp(x), op.Exp(op.Neg(x))), 0.5)


@_in_float64
def asinh(op: OpBuilder, x: Value) -> Value:
    """Inverse hyperbolic sine: log1p(|x| + x² / (1 + sqrt(1 + x²))) with the sign of x."""
    size = op.Abs(x)
    square = op.Mul(size, size)
    small = log1p_of(op, op.Add(size, op.Div(square, op.Add(op.Sqrt(op.Add(square, 1.0)), 1.0))))
    # Above 1e8, 1 + x² is rounded to x², and the square may overflow.
    large = op.Add(op.Log(size), math.log(2.0))
    value = op.Where(op.Greater(size, 1e8), large, small)
    return op.Where(op.Less(x, 0.0), op.Neg(value), value)


@_in_float64
def acosh(op: OpBuilder, x: Value) -> Value:
    """Inverse hyperbolic cosine: log1p(t + sqrt(2 t + t²)) with t = x - 1."""
    t = op.Sub(x, 1.0)
    # As for asinh, the square of large numbers may overflow.
    small = log1p_of(op, op.Add(t, op.Sqrt(op.Mul(t, op.Add(t, 2.0)))))
    return op.Where(op.Greater(x, 1e8), op.Add(op.Log(x), math.log(2.0)), small)


@_in_float64
def atanh(op: OpBuilder, x: Value) -> Value:
    """Inverse hyperbolic tangent: log1p(2 x / (1 - x)) / 2."""
    return op.Mul(log1p_of(op, op.Div(op.Mul(x, 2.0), op.Sub(1.0, x))), 0.5)
