"""Complex numbers: construction, parts and arithmetic."""

from __future__ import annotations

from typing import Any

import torch

from coreai_onnx.lower.aten.complex.parts import (
    Parts,
    as_pairs,
    broadcast_with,
    by_parts,
    join,
    parts_of,
    promoted_parts,
    split,
)
from coreai_onnx.lower.aten.pointwise import unary_math  # noqa: F401  # reused
from coreai_onnx.lower.aten.pointwise.trigonometry import atan2
from coreai_onnx.lower.aten.reduction import cumulative  # noqa: F401  # reused
from coreai_onnx.lower.aten.reduction import sums as reduction  # noqa: F401  # reused
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import (
    Value,
    dims_of,
    dtype_of,
    ir_dtype_of,
    is_complex,
    mark_complex,
    real_part,
)
from coreai_onnx.lower.walk.registry import lowers

Operand = Any
by_parts(
    "aten.neg.default",
    "aten.sum.default",
    "aten.sum.dim_IntList",
    "aten.mean.default",
    "aten.mean.dim",
    "aten.cumsum.default",
)
"""Ops that are linear in each part."""


# ---------------------------------------------------------------------- construction and parts
@lowers("aten.real.default", "prims.real.default", complex=True, which=0)
@lowers("aten.imag.default", "prims.imag.default", complex=True, which=1)
def part(op: OpBuilder, self: Value, *, which: int) -> Value:
    """Re self, or Im self."""
    return split(op, self)[which]


@lowers(
    "aten.view_as_real.default",
    "aten.view_as_real_copy.default",
    "aten.view_as_complex.default",
    "aten.view_as_complex_copy.default",
    "aten.resolve_conj.default",
    "aten.resolve_neg.default",
    complex=True,
)
def pairs(op: OpBuilder, self: Value) -> Value:
    """The value itself: complex values are represented as pairs, conjugations are never lazy."""
    return as_pairs(op, self)


@lowers("aten.complex.default", complex=True)
def complex_(op: OpBuilder, real: Value, imag: Value) -> Value:
    """real + i imag."""
    return _broadcast(op, real, imag)


@lowers("aten.polar.default", complex=True)
def polar(op: OpBuilder, abs: Value, angle: Value) -> Value:
    """abs (cos angle + i sin angle)."""
    return _broadcast(op, op.Mul(abs, op.Cos(angle)), op.Mul(abs, op.Sin(angle)))


@lowers(
    "aten._conj.default",
    "aten._conj_physical.default",
    "aten.conj.default",
    "aten.conj_physical.default",
    complex=True,
)
def conj(op: OpBuilder, self: Value) -> Value:
    """Re self - i Im self."""
    return op.Mul(self, op.const([1.0, -1.0], self.dtype))


def _broadcast(op: OpBuilder, re: Value, im: Value) -> Value:
    """Return the pairs of two parts of any shapes."""
    # Concat, unlike the arithmetic before it, does not broadcast.
    if dims_of(re) == dims_of(im):
        return join(op, re, im)
    return join(op, broadcast_with(op, re, im), broadcast_with(op, im, re))


# ---------------------------------------------------------------------- absolute values and angles
@lowers("aten.abs.default", complex=True)
def abs_(op: OpBuilder, self: Value) -> Value:
    """√(Re² + Im²), computed in float64, in which the squares of float32 do not overflow."""
    return op.cast(_size(op, op.cast(self, torch.float64)), ir_dtype_of(self))


def _size(op: OpBuilder, x: Value) -> Value:
    return op.Sqrt(op.ReduceSum(op.Mul(x, x), [-1], keepdims=0))


@lowers("aten.angle.default", complex=True)
def angle(op: OpBuilder, self: Value) -> Value:
    """The angle, from -π to π."""
    re, im = split(op, self)
    return atan2(op, im, re)


@lowers("aten.sgn.default", complex=True)
def sgn(op: OpBuilder, self: Value) -> Value:
    """self / |self|; 0 of 0."""
    size = op.unsqueeze(abs_(op, self), [-1])
    return op.Div(self, op.Where(op.Equal(size, 0.0), 1.0, size))


# ---------------------------------------------------------------------- arithmetic
@lowers("aten.add.Tensor", "aten.add.Scalar", complex=True, op_type="Add")
@lowers("aten.sub.Tensor", "aten.sub.Scalar", complex=True, op_type="Sub")
def add_or_sub(
    op: OpBuilder, self: Value, other: Operand, *, alpha: Operand = 1, op_type: str
) -> Value:
    """self + alpha * other, or self - alpha * other."""
    (a, b), (c, d) = promoted_parts(op, self, other)
    c, d = _scaled(op, (c, d), alpha)
    return _broadcast(op, op.node(op_type, a, c), op.node(op_type, b, d))


@lowers("aten.rsub.Scalar", complex=True)
def rsub_scalar(op: OpBuilder, self: Value, other: Operand, alpha: Operand = 1) -> Value:
    """other - alpha * self."""
    scaled = self if alpha == 1 else mul(op, self, alpha)
    (a, b), (c, d) = promoted_parts(op, self, other)
    a, b = (a, b) if alpha == 1 else split(op, scaled)
    return _broadcast(op, op.Sub(c, a), op.Sub(d, b))


@lowers("aten.mul.Tensor", "aten.mul.Scalar", "prims.mul.default", complex=True)
def mul(op: OpBuilder, self: Value, other: Operand) -> Value:
    """(a + ib)(c + id) = ac - bd + i(ad + bc); a real factor scales both parts."""
    # A real factor needs two products instead of four.
    for x, y in ((self, other), (other, self)):
        if is_complex(x) and not is_complex(y) and not isinstance(y, complex):
            (a, b), (factor, _) = promoted_parts(op, x, y)
            return _broadcast(op, op.Mul(a, factor), op.Mul(b, factor))
    left, right = promoted_parts(op, self, other)
    return _broadcast(op, *_times(op, left, right))


def _times(op: OpBuilder, left: Parts, right: Parts, op_type: str = "Mul") -> Parts:
    """Return the parts of a product of numbers (Mul) or matrices (MatMul)."""
    (a, b), (c, d) = left, right
    product = getattr(op, op_type)
    re = op.Sub(product(a, c), product(b, d))
    return re, op.Add(product(a, d), product(b, c))


def _scaled(op: OpBuilder, x: Parts, factor: Operand) -> Parts:
    return x if factor == 1 else _times(op, x, parts_of(op, complex(factor), dtype_of(x[0])))


@lowers("aten.div.Tensor", "aten.div.Scalar", "prims.div.default", complex=True)
def div(op: OpBuilder, self: Value, other: Operand) -> Value:
    """(a + ib)(c - id) / (c² + d²), with c and d scaled so that no square overflows."""
    (a, b), (c, d) = promoted_parts(op, self, other)
    if not is_complex(other) and not isinstance(other, complex):
        return _broadcast(op, op.Div(a, c), op.Div(b, c))
    scale = op.Max(op.Abs(c), op.Abs(d))
    c, d = op.Div(c, scale), op.Div(d, scale)
    re, im = _times(op, (a, b), (c, op.Neg(d)))
    below = op.Mul(op.Add(op.Mul(c, c), op.Mul(d, d)), scale)
    return _broadcast(op, op.Div(re, below), op.Div(im, below))


@lowers("aten.square.default", complex=True)
def square(op: OpBuilder, self: Value) -> Value:
    """self * self."""
    return mul(op, self, self)


@lowers("aten.reciprocal.default", complex=True)
def reciprocal(op: OpBuilder, self: Value) -> Value:
    """1 / self."""
    one = mark_complex(join(op, op.like(self, 1), op.like(self, 0)))
    return div(op, one, self)


# ---------------------------------------------------------------------- functions
@lowers("aten.exp.default", complex=True)
def exp(op: OpBuilder, self: Value) -> Value:
    """e^Re (cos Im + i sin Im)."""
    re, im = split(op, self)
    size = op.Exp(re)
    return join(op, op.Mul(size, op.Cos(im)), op.Mul(size, op.Sin(im)))


@lowers("aten.log.default", complex=True)
def log(op: OpBuilder, self: Value) -> Value:
    """log |self| + i angle(self), the logarithm in float64."""
    # float64, in which the squares of float32 do not overflow.
    size = op.Log(_size(op, op.cast(self, torch.float64)))
    return join(op, op.cast(size, dtype_of(angle_ := angle(op, self))), angle_)


@lowers("aten.sqrt.default", complex=True)
def sqrt(op: OpBuilder, self: Value) -> Value:
    """√((|z| + Re) / 2) + i sign(Im) √((|z| - Re) / 2), in float64."""
    wide = op.cast(self, torch.float64)
    size = _size(op, wide)
    re, im = split(op, wide)
    # |z| may be rounded to less than |Re|; the root of the difference would be NaN.
    up = op.Sqrt(op.Mul(op.Max(op.Add(size, re), 0.0), 0.5))
    down = op.Sqrt(op.Mul(op.Max(op.Sub(size, re), 0.0), 0.5))
    signed = op.Where(op.Less(im, 0.0), op.Neg(down), down)
    return op.cast(join(op, up, signed), ir_dtype_of(self))


# ---------------------------------------------------------------------- matrix products
@lowers("aten.mm.default", "aten.bmm.default", complex=True, renamed={"other": "mat2"})
@lowers("aten.mv.default", complex=True, renamed={"other": "vec"})
@lowers("aten.dot.default", complex=True, renamed={"other": "tensor"})
@lowers("aten.matmul.default", complex=True)
def matmul(op: OpBuilder, self: Value, other: Value) -> Value:
    """self @ other, from four real products; leading axes are broadcast."""
    left, right = promoted_parts(op, self, other)
    return join(op, *_times(op, left, right, "MatMul"))


@lowers("aten.vdot.default", complex=True)
def vdot(op: OpBuilder, self: Value, other: Value) -> Value:
    """Σ conj(self) * other."""
    (a, b), right = promoted_parts(op, self, other)
    return join(op, *_times(op, (a, op.Neg(b)), right, "MatMul"))


# ---------------------------------------------------------------------- equality and selection
@lowers("aten.eq.Tensor", "aten.eq.Scalar", complex=True)
def eq(op: OpBuilder, self: Value, other: Operand) -> Value:
    """Whether both parts are equal."""
    (a, b), (c, d) = promoted_parts(op, self, other)
    return op.And(op.Equal(a, c), op.Equal(b, d))


@lowers("aten.ne.Tensor", "aten.ne.Scalar", complex=True)
def ne(op: OpBuilder, self: Value, other: Operand) -> Value:
    """Whether a part differs."""
    return op.Not(eq(op, self, other))


@lowers("aten.where.self", complex=True)
def where(op: OpBuilder, condition: Value, self: Value, other: Value) -> Value:
    """self where the condition holds, other elsewhere."""
    (a, b), (c, d) = promoted_parts(op, self, other)
    return join(op, op.Where(condition, a, c), op.Where(condition, b, d))


# ---------------------------------------------------------------------- dtypes
@lowers("prims.convert_element_type.default", complex=True, renamed={"self": "a"})
@lowers("aten._to_copy.default", "aten.to.dtype", complex=True)
def converted(op: OpBuilder, self: Value, dtype: torch.dtype | None = None) -> Value:
    """self in a dtype; adds an imaginary part of zero, or drops the imaginary part."""
    target = dtype if dtype is not None else dtype_of(self)
    if target.is_complex:
        if is_complex(self):
            return op.cast(as_pairs(op, self), target)
        return join(op, *parts_of(op, self, real_part(target)))
    return op.cast(split(op, self)[0], target)
