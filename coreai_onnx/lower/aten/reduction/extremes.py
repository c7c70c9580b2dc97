"""Greatest and least elements and their indices; NaN is both greater and less than all others."""

from __future__ import annotations

import torch

from coreai_onnx.lower.aten.reduction.sums import Axes, reduced
from coreai_onnx.lower.aten.shape.indices import flat
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import (
    Value,
    dims_of,
    dtype_of,
    is_float,
    rank_of,
    set_dims,
    wrap,
)
from coreai_onnx.lower.walk.registry import lowers

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}


def order_key(op: OpBuilder, x: Value, *, nan_last: bool = True) -> Value:
    """Return values that sort as torch sorts ``x``: NaN beyond +inf (or before -inf).

    onnxruntime compares with ``<``, which is not an order if there is a NaN. The key has a wider
    dtype, in which infinity is mapped to a large finite number and NaN to infinity. float64 has no
    wider dtype: there the largest number and infinity become equal.
    """
    if not is_float(x):
        return x
    dtype = dtype_of(x)
    wide = op.cast(x, _WIDER.get(dtype, dtype))
    largest = torch.finfo(dtype).max * (2.0 if dtype in _WIDER else 1.0)
    if nan_last:
        key = op.Where(op.IsNaN(x), float("inf"), op.Min(wide, largest))
    else:
        key = op.Where(op.IsNaN(x), -float("inf"), op.Max(wide, -largest))
    return set_dims(key, dims_of(x))


def extreme(op: OpBuilder, x: Value, axes: Axes, *, largest: bool, keepdim: bool) -> Value:
    """Return the greatest or least element over axes, NaN if there is one.

    onnxruntime's ReduceMax and ReduceMin may ignore a NaN, depending on its position in the row.
    """
    values = reduced(op, "ReduceMax" if largest else "ReduceMin", x, axes, keepdim=keepdim)
    if not is_float(x) or rank_of(x) == 0:
        return values
    has_nan = reduced(op, "ReduceMax", op.IsNaN(x), axes, keepdim=keepdim)
    return op.Where(has_nan, float("nan"), values)


def extreme_index(
    op: OpBuilder, x: Value, axis: int | None, *, largest: bool, keepdim: bool
) -> Value:
    """Return the index of the first greatest or least element, of the first NaN if there is one."""
    rank = rank_of(x)
    if rank == 0:
        return op.const(0)
    key = order_key(op, x, nan_last=largest)
    if axis is None:
        # Without an axis, torch counts through the flattened tensor.
        key = flat(op, key)
    op_type = "ArgMax" if largest else "ArgMin"
    keepdims = int(keepdim and axis is not None)
    first = 0 if axis is None else wrap(axis, rank)
    where = op.node(op_type, key, axis=first, keepdims=keepdims)
    return op.reshape(where, [1] * rank) if keepdim and axis is None else where


# ---------------------------------------------------------------------- values
@lowers("aten.amax.default")
def amax(op: OpBuilder, self: Value, dim: Axes = None, *, keepdim: bool = False) -> Value:
    """Greatest element over axes."""
    return extreme(op, self, dim, largest=True, keepdim=keepdim)


@lowers("aten.amin.default")
def amin(op: OpBuilder, self: Value, dim: Axes = None, *, keepdim: bool = False) -> Value:
    """Least element over axes."""
    return extreme(op, self, dim, largest=False, keepdim=keepdim)


@lowers("prims.amax.default")
def prims_amax(op: OpBuilder, inp: Value, dims: Axes) -> Value:
    """Greatest element over axes."""
    return extreme(op, inp, dims, largest=True, keepdim=False)


@lowers("prims.amin.default")
def prims_amin(op: OpBuilder, inp: Value, dims: Axes) -> Value:
    """Least element over axes."""
    return extreme(op, inp, dims, largest=False, keepdim=False)


@lowers("aten.aminmax.default")
def aminmax(
    op: OpBuilder, self: Value, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    """Least and greatest element along an axis."""
    least = extreme(op, self, dim, largest=False, keepdim=keepdim)
    return least, extreme(op, self, dim, largest=True, keepdim=keepdim)


@lowers("aten.max.default")
def max_all(op: OpBuilder, self: Value) -> Value:
    """Greatest of all elements."""
    return extreme(op, self, None, largest=True, keepdim=False)


@lowers("aten.min.default")
def min_all(op: OpBuilder, self: Value) -> Value:
    """Least of all elements."""
    return extreme(op, self, None, largest=False, keepdim=False)


# ---------------------------------------------------------------------- values and indices
@lowers("aten.max.dim")
def max_dim(op: OpBuilder, self: Value, dim: int, *, keepdim: bool = False) -> tuple[Value, Value]:
    """Greatest element along an axis, and its first index."""
    return _with_index(op, self, dim, largest=True, keepdim=keepdim)


@lowers("aten.min.dim")
def min_dim(op: OpBuilder, self: Value, dim: int, *, keepdim: bool = False) -> tuple[Value, Value]:
    """Least element along an axis, and its first index."""
    return _with_index(op, self, dim, largest=False, keepdim=keepdim)


def _with_index(
    op: OpBuilder, x: Value, dim: int, *, largest: bool, keepdim: bool
) -> tuple[Value, Value]:
    found = extreme(op, x, dim, largest=largest, keepdim=keepdim)
    return found, extreme_index(op, x, dim, largest=largest, keepdim=keepdim)


@lowers("aten.argmax.default")
def argmax(op: OpBuilder, self: Value, dim: int | None = None, *, keepdim: bool = False) -> Value:
    """First index of the greatest element."""
    return extreme_index(op, self, dim, largest=True, keepdim=keepdim)


@lowers("aten.argmin.default")
def argmin(op: OpBuilder, self: Value, dim: int | None = None, *, keepdim: bool = False) -> Value:
    """First index of the least element."""
    return extreme_index(op, self, dim, largest=False, keepdim=keepdim)
