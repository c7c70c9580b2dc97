"""Cumulative sums, products and extremes along an axis."""

from __future__ import annotations

import torch

from coreai_onnx.lower.aten.reduction.sums import accumulated
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.loops import scan
from coreai_onnx.lower.nodes.numerics import widen
from coreai_onnx.lower.nodes.tensors import filled, positions
from coreai_onnx.lower.nodes.values import (
    Dim,
    Value,
    dims_of,
    dtype_of,
    is_bool,
    is_float,
    rank_of,
    set_dims,
    wrap,
)
from coreai_onnx.lower.walk.registry import lowers


@lowers("aten.cumsum.default")
def cumsum(op: OpBuilder, self: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    """Sum of the elements up to each element."""
    x = accumulated(op, self, dtype)
    rank = rank_of(x)
    return op.CumSum(x, op.const(wrap(dim, rank))) if rank else x


@lowers("aten.cumprod.default")
def cumprod(op: OpBuilder, self: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    """Product of the elements up to each element."""
    x = accumulated(op, self, dtype)
    dims = dims_of(x)
    if not dims:
        return x
    axis = wrap(dim, len(dims))
    # CumProd exists from opset 26 on.
    if op.opset >= 26:
        return op.CumProd(x, op.const(axis))
    if 0 in dims:
        return x
    (wide,) = widen(op, x) if is_float(x) else (x,)
    ones = filled(op, _slice_dims(dims, axis), 1, dtype_of(wide))
    return scan(op, [wide], axis, [ones], lambda o, state, x: [o.Mul(state[0], x[0])])[0]


def _slice_dims(dims: tuple[Dim, ...], axis: int) -> tuple[Dim, ...]:
    return (*dims[:axis], *dims[axis + 1 :])


@lowers("aten.logcumsumexp.default", "aten._logcumsumexp.default")
def logcumsumexp(op: OpBuilder, self: Value, dim: int) -> Value:
    """log Σ exp over the elements up to each element, without overflow."""
    (x,) = widen(op, self)
    dims = dims_of(x)
    if not dims or 0 in dims:
        return x
    axis = wrap(dim, len(dims))
    # The logarithm of an empty sum.
    start = filled(op, _slice_dims(dims, axis), -float("inf"), dtype_of(x))
    return scan(op, [x], axis, [start], lambda o, state, x: [_logaddexp(o, state[0], x[0])])[0]


def _logaddexp(op: OpBuilder, a: Value, b: Value) -> Value:
    """max + log(1 + exp(min - max)); two equal infinities give that infinity."""
    gap = op.Where(op.Equal(a, b), 0.0, op.Sub(op.Min(a, b), op.Max(a, b)))
    return op.Add(op.Max(a, b), op.Log(op.Add(op.Exp(gap), 1.0)))


@lowers("aten.cummax.default", beats="GreaterOrEqual")
@lowers("aten.cummin.default", beats="LessOrEqual")
def running_extreme(op: OpBuilder, self: Value, dim: int, *, beats: str) -> tuple[Value, Value]:
    """The extreme up to each element, and its last index; NaN beats every other value."""
    dims = dims_of(self)
    if not dims or 0 in dims:
        return self, filled(op, dims, 0, torch.int64)
    axis = wrap(dim, len(dims))
    rest = _slice_dims(dims, axis)
    # Booleans have no order in ONNX.
    wide = op.cast(self, torch.uint8) if is_bool(self) else self

    def step(o: OpBuilder, state: list[Value], slices: list[Value]) -> list[Value]:
        (best, where), (new, index) = state, slices
        better = o.node(beats, new, best)
        if is_float(new):
            better = o.Or(o.IsNaN(new), o.And(better, o.Not(o.IsNaN(best))))
        return [o.Where(better, new, best), o.Where(better, index, where)]

    first = set_dims(op.squeeze(op.slice(wide, axis, 0, 1), [axis]), rest)
    shape = [1] * len(dims)
    shape[axis] = dims[axis]
    index = op.expand(op.reshape(positions(op, dims[axis]), shape), dims)
    values, indices = scan(op, [wide, index], axis, [first, filled(op, rest, 0, torch.int64)], step)
    return values, indices
