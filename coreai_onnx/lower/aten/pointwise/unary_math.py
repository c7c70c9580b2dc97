"""Functions of one element: signs, rounding, exponentials and logarithms."""

from __future__ import annotations

import math

import onnx_ir as ir
import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.numerics import in_double, truncated, widen
from coreai_onnx.lower.nodes.promotion import promote_to_float
from coreai_onnx.lower.nodes.values import Value, is_bool, is_float, is_integer
from coreai_onnx.lower.walk.registry import lowers

_FLOATING = {
    "exp": "Exp",
    "log": "Log",
    "sigmoid": "Sigmoid",
    "special_expit": "Sigmoid",
    "tanh": "Tanh",
    "sin": "Sin",
    "cos": "Cos",
}
_ROUNDING = {"ceil": "Ceil", "floor": "Floor", "round": "Round"}


def floating(op: OpBuilder, self: Value, *, op_type: str) -> Value:
    """One ONNX op; integers are converted to floating-point first."""
    return op.node(op_type, *promote_to_float(op, self))


def rounding(op: OpBuilder, self: Value, *, op_type: str) -> Value:
    """One ONNX op; integers are returned unchanged."""
    return op.node(op_type, self) if is_float(self) else self


for _name, _op_type in _FLOATING.items():
    lowers(f"aten.{_name}.default", op_type=_op_type)(floating)
    if hasattr(torch.ops.prims, _name):
        lowers(f"prims.{_name}.default", op_type=_op_type)(floating)
for _name, _op_type in _ROUNDING.items():
    lowers(f"aten.{_name}.default", f"prims.{_name}.default", op_type=_op_type)(rounding)


# ---------------------------------------------------------------- signs
@lowers("aten.abs.default", "prims.abs.default")
def abs(op: OpBuilder, self: Value) -> Value:
    """The absolute value; the lowest integer is unchanged."""
    return self if is_bool(self) else op.Abs(self)


@lowers("aten.neg.default", "prims.neg.default")
def neg(op: OpBuilder, self: Value) -> Value:
    """-self; an unsigned integer wraps around."""
    # Neg does not accept unsigned integers.
    if is_integer(self) and self.dtype in (ir.DataType.UINT8, ir.DataType.UINT16):
        return op.Sub(op.like(self, 0), self)
    return op.Neg(self)


@lowers("aten.sign.default", "aten.sgn.default", "prims.sign.default")
def sign(op: OpBuilder, self: Value) -> Value:
    """-1, 0 or 1; 0 for NaN."""
    if is_bool(self):
        return self
    if not is_float(self):
        return op.Sign(self)
    return op.Where(op.IsNaN(self), op.like(self, 0.0), op.Sign(self))


# ---------------------------------------------------------------- rounding
@lowers("aten.trunc.default", "aten.fix.default", "prims.trunc.default")
def trunc(op: OpBuilder, self: Value) -> Value:
    """self rounded toward zero."""
    return truncated(op, self)


# ---------------------------------------------------------------- exponentials and logarithms
@lowers("aten.exp2.default", "aten.special_exp2.default", "prims.exp2.default")
def exp2(op: OpBuilder, self: Value) -> Value:
    """2 ** self."""
    (x,) = promote_to_float(op, self)
    return op.Pow(op.like(x, 2.0), x)


def expm1_of(op: OpBuilder, x: Value) -> Value:
    """Return exp(x) - 1 as tanh(x / 2) * (exp(x) + 1), which keeps its digits near zero."""
    return op.Mul(op.Tanh(op.Mul(x, 0.5)), op.Add(op.Exp(x), 1.0))


@lowers("aten.expm1.default", "aten.special_expm1.default", "prims.expm1.default")
def expm1(op: OpBuilder, self: Value) -> Value:
    """exp(self) - 1, accurate near zero."""
    return expm1_of(op, widen(op, self)[0])


def log1p_of(op: OpBuilder, x: Value) -> Value:
    """Return log(1 + x) with the rounding error of 1 + x corrected.

    W. Kahan's correction: with u = fl(1 + x), log(1 + x) = log(u) + (x - (u - 1)) / u to first
    order, exact to the last bits; where u - 1 == x no correction is needed (which also avoids 0/0
    and inf - inf).
    """
    u = op.Add(x, 1.0)
    back = op.Sub(u, 1.0)
    logarithm = op.Log(u)
    corrected = op.Add(logarithm, op.Div(op.Sub(x, back), u))
    return op.Where(op.Equal(back, x), logarithm, corrected)


@lowers("aten.log1p.default", "aten.special_log1p.default", "prims.log1p.default")
def log1p(op: OpBuilder, self: Value) -> Value:
    """log(1 + self), accurate near zero."""
    return log1p_of(op, widen(op, self)[0])


@lowers("aten.log2.default", "prims.log2.default", base=2.0)
@lowers("aten.log10.default", "prims.log10.default", base=10.0)
def logarithm(op: OpBuilder, self: Value, *, base: float) -> Value:
    """Logarithm to a base, in float64, so that powers of the base give integers."""
    return op.Div(op.Log(*in_double(op, self)), math.log(base))


@lowers("aten.logit.default", "aten.special_logit.default")
def logit(op: OpBuilder, self: Value, eps: float | None = None) -> Value:
    """log(x / (1 - x)), with x clamped to [eps, 1 - eps] if eps is given."""
    (x,) = widen(op, self)
    if eps is not None and eps >= 0:
        x = op.Clip(x, eps, 1.0 - eps)
    return op.Log(op.Div(x, op.Sub(1.0, x)))


@lowers("aten.logaddexp.default")
def logaddexp(op: OpBuilder, self: Value, other: Value) -> Value:
    """log(exp(self) + exp(other)) without overflow."""
    a, b = widen(op, self, other)
    gap = log1p_of(op, op.Exp(op.Neg(op.Abs(op.Sub(a, b)))))
    # Equal infinities have no difference.
    return op.Where(op.Equal(a, b), op.Add(a, math.log(2.0)), op.Add(op.Max(a, b), gap))


@lowers("aten.logaddexp2.default")
def logaddexp2(op: OpBuilder, self: Value, other: Value) -> Value:
    """log2(2 ** self + 2 ** other) without overflow."""
    a, b = widen(op, self, other)
    ratio = op.Pow(op.like(a, 2.0), op.Neg(op.Abs(op.Sub(a, b))))
    gap = op.Div(log1p_of(op, ratio), math.log(2.0))
    return op.Where(op.Equal(a, b), op.Add(a, 1.0), op.Add(op.Max(a, b), gap))


@lowers("aten.special_entr.default")
def entr(op: OpBuilder, self: Value) -> Value:
    """-x * log(x); 0 at 0, -inf below."""
    (x,) = widen(op, self)
    inside = op.Where(op.Equal(x, 0.0), op.like(x, 0.0), op.Mul(op.Neg(x), op.Log(x)))
    return op.Where(op.Less(x, 0.0), op.like(x, -math.inf), inside)
