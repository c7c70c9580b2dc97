"""Variances, standard deviations, norms and log-sum-exp."""

from __future__ import annotations

import math

import torch

from coreai_onnx.lower.aten.reduction.extremes import extreme
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.numerics import widen
from coreai_onnx.lower.nodes.tensors import Axes, reduced, reduced_count
from coreai_onnx.lower.nodes.values import Dim, Number, Value, dtype_of, rank_of, wrap_all
from coreai_onnx.lower.walk.registry import lowers


# ---------------------------------------------------------------------- variance
def variance(
    op: OpBuilder, x: Value, axes: Axes, correction: Number | None, *, keepdim: bool
) -> tuple[Value, Value]:
    """Return Σ(x - mean)² / max(0, n - correction) and the mean, in the compute dtype."""
    (wide,) = widen(op, x)
    center = reduced(op, "ReduceMean", wide, axes, keepdim=True)
    # Pow, which fusions of onnxruntime match.
    squares = op.Pow(op.Sub(wide, center), 2.0)
    count = reduced_count(x, axes)
    less = 1 if correction is None else correction
    mean = center if keepdim else _dropped(op, center, wide, axes)
    if less == 0 and count != 0:
        return reduced(op, "ReduceMean", squares, axes, keepdim=keepdim), mean
    total = reduced(op, "ReduceSum", squares, axes, keepdim=keepdim)
    if count == 0:
        # NaN, as in torch; a constant would not have the shape of the result.
        return op.Div(total, 0.0), op.Div(mean, 0.0)
    return op.Div(total, _degrees(op, count, less, dtype_of(wide))), mean


def _dropped(op: OpBuilder, center: Value, x: Value, axes: Axes) -> Value:
    return op.squeeze(center, wrap_all(axes, rank_of(x)))


def _degrees(op: OpBuilder, count: Dim, correction: Number, dtype: torch.dtype) -> Value:
    """Return max(0, count - correction) as a 0-d value."""
    if isinstance(count, int):
        return op.const(max(0.0, count - float(correction)), dtype)
    size = op.cast(op.dim(count), dtype)
    return op.Max(op.Sub(size, op.const(float(correction), dtype)), op.const(0.0, dtype))


_VAR, _STD, _VAR_MEAN, _STD_MEAN = (
    [f"aten.{name}.{overload}" for overload in ("default", "dim", "correction")]
    for name in ("var", "std", "var_mean", "std_mean")
)


@lowers("prims.var.default", renamed={"self": "inp", "dim": "dims"})
@lowers(*_VAR)
@lowers(*_STD, root=True)
@lowers(*_VAR_MEAN, with_mean=True)
@lowers(*_STD_MEAN, root=True, with_mean=True)
def var(
    op: OpBuilder,
    self: Value,
    dim: Axes = None,
    *,
    unbiased: bool = True,
    correction: Number | None = None,
    keepdim: bool = False,
    root: bool = False,
    with_mean: bool = False,
) -> Value | tuple[Value, Value]:
    """The variance over axes with n - correction degrees of freedom, its root, and the mean."""
    less = int(unbiased) if correction is None else correction
    result, mean = variance(op, self, dim, less, keepdim=keepdim)
    result = op.Sqrt(result) if root else result
    return (result, mean) if with_mean else result


# ---------------------------------------------------------------------- log Σ exp
@lowers("aten.logsumexp.default", "aten.special_logsumexp.default")
def logsumexp(op: OpBuilder, self: Value, dim: Axes, *, keepdim: bool = False) -> Value:
    """log Σ exp(x), without overflow."""
    (x,) = widen(op, self)
    return reduced(op, "ReduceLogSumExp", x, dim, keepdim=keepdim)


# ---------------------------------------------------------------------- norms
@lowers("aten.linalg_vector_norm.default")
def vector_norm(
    op: OpBuilder,
    self: Value,
    ord: Number = 2,
    dim: Axes = None,
    *,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Value:
    """(Σ|x|ᵖ)^(1/p); the greatest or least |x| for an infinite order, a count for order 0."""
    x, order = self if dtype is None else op.cast(self, dtype), float(ord)
    if rank_of(x) > 0 and op.keeps(x):
        axes = wrap_all(dim, rank_of(x))
        return op.composite("linalg_vector_norm", [x], ord=order, axes=axes, keep_dim=keepdim)
    (x,) = widen(op, x)
    if order == 0:
        there = op.cast(op.Not(op.Equal(x, 0.0)), dtype_of(x))
        return reduced(op, "ReduceSum", there, dim, keepdim=keepdim)
    if math.isinf(order):
        return extreme(op, op.Abs(x), dim, largest=order > 0, keepdim=keepdim)
    if order in (1, 2):
        # a 0-d tensor has no axis for the reduction
        return reduced(op, f"ReduceL{int(order)}", _at_least_1d(op, x), dim, keepdim=keepdim)
    powers = op.Pow(op.Abs(x), op.like(x, order))
    return op.Pow(reduced(op, "ReduceSum", powers, dim, keepdim=keepdim), op.like(x, 1 / order))


def _at_least_1d(op: OpBuilder, x: Value) -> Value:
    return op.Abs(x) if rank_of(x) == 0 else x


@lowers(
    "aten.norm.Scalar",
    "aten.norm.ScalarOpt_dim",
    "aten.norm.ScalarOpt_dtype",
    "aten.norm.ScalarOpt_dim_dtype",
)
def norm(
    op: OpBuilder,
    self: Value,
    p: Number | None = 2,
    dim: Axes = None,
    *,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Value:
    """The norm over axes, computed in ``dtype`` if given."""
    return vector_norm(op, self, 2 if p is None else p, dim, keepdim=keepdim, dtype=dtype)
