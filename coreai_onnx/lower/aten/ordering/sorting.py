"""Sorting along an axis: sorted values, their indices, single ranks, and quantiles.

torch documents no order of equal elements, except for a stable sort. Here every sort is stable.
"""

from __future__ import annotations

import torch

from coreai_onnx.lower.aten.reduction.extremes import extreme_index, order_key
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.tensors import flat, floor_div, move_last, reduced
from coreai_onnx.lower.nodes.values import (
    Dim,
    Value,
    dims_of,
    dtype_of,
    is_float,
    rank_of,
    set_dims,
    wrap,
)
from coreai_onnx.lower.walk.registry import Lowering, lowers


@lowers("aten.topk.default")
def topk(
    op: OpBuilder, self: Value, k: Dim, dim: int = -1, *, largest: bool = True
) -> tuple[Value, Value]:
    """The k greatest or least elements along an axis, and their indices.

    The position of a NaN depends on the runtime; torch does not document it.
    """
    rank = rank_of(self)
    if rank == 0:
        return self, op.const(0)
    return _top(op, self, k, wrap(dim, rank), largest=largest)


def _top(op: OpBuilder, x: Value, k: Dim, axis: int, *, largest: bool) -> tuple[Value, Value]:
    """Return TopK in order; among equal elements, the one with the lower index comes first."""
    values, indices = op.TopK(x, op.shape([k]), axis=axis, largest=int(largest), _outputs=2)
    dims = dims_of(x)
    for result in (values, indices):
        set_dims(result, (*dims[:axis], k, *dims[axis + 1 :]))
    return values, indices


def ranked(op: OpBuilder, x: Value, k: Dim, axis: int, *, descending: bool) -> tuple[Value, Value]:
    """Return the first k elements in stable order, NaN as the greatest, and their indices."""
    values, indices = _top(op, order_key(op, x), k, axis, largest=descending)
    if is_float(x):
        # The key has another dtype, and other numbers in place of NaN and infinity.
        values = op.GatherElements(x, indices, axis=axis)
    return values, indices


@lowers("aten.sort.default", "aten.sort.stable")
def sort(
    op: OpBuilder, self: Value, dim: int = -1, *, descending: bool = False
) -> tuple[Value, Value]:
    """Sorted elements along an axis, and their indices."""
    rank = rank_of(self)
    if rank == 0:
        return self, op.const(0)
    axis = wrap(dim, rank)
    return ranked(op, self, dims_of(self)[axis], axis, descending=descending)


# ---------------------------------------------------------------------- one rank
@lowers("aten.kthvalue.default")
def kthvalue(
    op: OpBuilder, self: Value, k: Dim, dim: int = -1, *, keepdim: bool = False
) -> tuple[Value, Value]:
    """The k-th least element along an axis, and its index."""
    rank = rank_of(self)
    if rank == 0:
        return self, op.const(0)
    return _kth(op, self, k, wrap(dim, rank), keepdim=keepdim)


def _kth(op: OpBuilder, x: Value, k: Dim, axis: int, *, keepdim: bool) -> tuple[Value, Value]:
    """Return the last of the first k elements in stable order, and its index."""
    values, indices = ranked(op, x, k, axis, descending=False)
    return _last(op, values, axis, keepdim=keepdim), _last(op, indices, axis, keepdim=keepdim)


def _last(op: OpBuilder, x: Value, axis: int, *, keepdim: bool) -> Value:
    return op.Gather(x, op.const([-1] if keepdim else -1), axis=axis)


def _of_all(op: OpBuilder, x: Value, median: Lowering) -> Value:
    """Return the median of all elements; NaN if there are none."""
    return op.like(x, float("nan")) if 0 in dims_of(x) else median(op, flat(op, x), 0)[0]


@lowers("aten.median.default", "aten.median.dim")
def median(
    op: OpBuilder, self: Value, dim: int | None = None, *, keepdim: bool = False
) -> Value | tuple[Value, Value]:
    """The lower median, and its index along an axis; the first NaN if there is one."""
    if dim is None:
        return _of_all(op, self, median)
    rank = rank_of(self)
    if rank == 0:
        return self, op.const(0)
    axis = wrap(dim, rank)
    middle = floor_div(dims_of(self)[axis] + 1, 2)
    values, indices = _kth(op, self, middle, axis, keepdim=keepdim)
    if not is_float(self):
        return values, indices
    has_nan = reduced(op, "ReduceMax", op.IsNaN(self), axis, keepdim=keepdim)
    # order_key makes NaN the greatest element.
    first = extreme_index(op, self, axis, largest=True, keepdim=keepdim)
    return op.Where(has_nan, float("nan"), values), op.Where(has_nan, first, indices)


@lowers("aten.nanmedian.default", "aten.nanmedian.dim")
def nanmedian(
    op: OpBuilder, self: Value, dim: int | None = None, *, keepdim: bool = False
) -> Value | tuple[Value, Value]:
    """The lower median of the elements that are not NaN, and its index along an axis."""
    if dim is None:
        return _of_all(op, self, nanmedian)
    rank = rank_of(self)
    if rank == 0 or not is_float(self):
        return median(op, self, dim, keepdim=keepdim)
    axis = wrap(dim, rank)
    values, indices = ranked(op, self, dims_of(self)[axis], axis, descending=False)
    there = op.cast(op.Not(op.IsNaN(self)), torch.int64)
    count = reduced(op, "ReduceSum", set_dims(there, dims_of(self)), axis, keepdim=True)
    middle = op.Max(op.Div(op.Sub(count, 1), 2), 0)
    pair = [op.GatherElements(x, middle, axis=axis) for x in (values, indices)]
    return tuple(x if keepdim else op.squeeze(x, [axis]) for x in pair)  # type: ignore[return-value]


@lowers("aten.mode.default")
def mode(
    op: OpBuilder, self: Value, dim: int = -1, *, keepdim: bool = False
) -> tuple[Value, Value]:
    """The most frequent element along an axis (the least one in a tie), and its last index."""
    rank = rank_of(self)
    if rank == 0:
        return self, op.const(0)
    axis = wrap(dim, rank)
    key = op.cast(self, torch.int64) if not is_float(self) else self
    # All pairs are compared: ONNX has no op that counts equal elements along an axis.
    equal = op.Equal(op.unsqueeze(key, [axis]), op.unsqueeze(key, [axis + 1]))
    counts = op.ReduceSum(op.cast(equal, torch.int64), [axis + 1], keepdims=0)
    most = op.ReduceMax(counts, [axis], keepdims=1)
    unlike = float("inf") if is_float(key) else 2**63 - 1
    least = op.ReduceMin(op.Where(op.Equal(counts, most), key, unlike), [axis], keepdims=1)
    hits = op.cast(op.Equal(key, least), torch.uint8)
    where = op.ArgMax(hits, axis=axis, keepdims=1, select_last_index=1)
    pair = (least, where)
    return tuple(x if keepdim else op.squeeze(x, [axis]) for x in pair)  # type: ignore[return-value]


@lowers("aten.quantile.default", "aten.quantile.scalar")
@lowers("aten.nanquantile.default", "aten.nanquantile.scalar", ignore_nan=True)
def quantile(
    op: OpBuilder,
    self: Value,
    q: Value | float,
    dim: int | None = None,
    *,
    keepdim: bool = False,
    interpolation: str = "linear",
    ignore_nan: bool = False,
) -> Value:
    """The elements at fractions q of the sorted elements; NaN if there is one, or ignored.

    Sorted along the last axis; the neighbors of q * (n - 1); the axis of q in front.
    """
    q = op.const(q, dtype_of(self)) if isinstance(q, float) else q
    rank = rank_of(self)
    axis = 0 if dim is None else wrap(dim, rank)
    rows = flat(op, self) if dim is None or rank == 0 else move_last(op, self, axis)
    size = dims_of(rows)[-1]
    last = rank_of(rows) - 1
    values, _ = ranked(op, rows, size, last, descending=False)
    highest = op.cast(op.dim(size - 1), dtype_of(self))
    missing = op.cast(op.IsNaN(rows), dtype_of(self))
    count = op.ReduceSum(missing, [last], keepdims=1)
    fractions = op.reshape(q, [1]) if rank_of(q) == 0 else q
    # NaN is sorted last: the elements that count are before it, and the last place returns it.
    if ignore_nan:
        places = op.Mul(fractions, op.Max(op.Sub(highest, count), 0.0))
    else:
        places = op.Where(op.Greater(count, 0.0), highest, op.Mul(fractions, highest))
    set_dims(places, (*dims_of(rows)[:-1], *dims_of(fractions)))
    result = _between(op, values, places, last, interpolation)
    result = op.transpose(result, [last, *range(last)])
    if keepdim:
        new = range(1, rank + 1) if dim is None else [axis + 1]
        result = op.unsqueeze(result, list(new))
    return op.squeeze(result, [0]) if rank_of(q) == 0 else result


def _between(op: OpBuilder, values: Value, places: Value, axis: int, interpolation: str) -> Value:
    """Return the interpolated values at fractional positions."""

    def at(places: Value) -> Value:
        index = op.cast(places, torch.int64)
        return op.GatherElements(values, index, axis=axis)

    rounding = {"lower": "Floor", "higher": "Ceil", "nearest": "Round"}
    if interpolation in rounding:
        result = at(op.node(rounding[interpolation], places))
        return set_dims(result, dims_of(places))
    floor = op.Floor(places)
    below, above = at(floor), at(op.Ceil(places))
    weight = op.like(places, 0.5) if interpolation == "midpoint" else op.Sub(places, floor)
    gap = op.Sub(above, below)
    # from the nearer end, as torch's lerp
    near = op.Add(below, op.Mul(weight, gap))
    far = op.Sub(above, op.Mul(gap, op.Sub(1.0, weight)))
    return set_dims(op.Where(op.Less(weight, 0.5), near, far), dims_of(places))
