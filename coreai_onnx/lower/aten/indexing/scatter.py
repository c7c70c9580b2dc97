"""Scatter along one axis, with and without reduction."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.lower.aten.indexing.selection import index_put
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.promotion import as_value
from coreai_onnx.lower.nodes.tensors import reduction_dtype
from coreai_onnx.lower.nodes.values import (
    Dim,
    Number,
    Value,
    as_dim,
    dims_of,
    dtype_of,
    is_bool,
    is_float,
    rank_of,
    set_dims,
    wrap,
)
from coreai_onnx.lower.walk.registry import lowers

_REDUCTIONS = {
    "add": "add",
    "sum": "add",
    "mean": "add",
    "multiply": "mul",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}


# ---------------------------------------------------------------------- one index per element
@lowers("aten.scatter.src")
@lowers("aten.scatter.value", renamed={"src": "value"})
def scatter(op: OpBuilder, self: Value, dim: int, index: Value, src: Value | Number) -> Value:
    """result[index[i][j]][j] = src[i][j], or one value, along ``dim``."""
    return _scattered(op, self, dim, index, _source(op, self, index, src), "none")


@lowers("aten.scatter.value_reduce", renamed={"src": "value"})
@lowers("aten.scatter.reduce", "aten.scatter_reduce.two")
@lowers("aten.scatter_add.default")
def scatter_reduce(
    op: OpBuilder,
    self: Value,
    dim: int,
    index: Value,
    src: Value | Number,
    reduce: str = "sum",
    *,
    include_self: bool = True,
) -> Value:
    """src reduced into the elements at its index, with or without the initial value of self.

    The scatter is in a dtype for which onnxruntime supports the reduction.
    """
    dtype = reduction_dtype(dtype_of(self))
    source = _source(op, self, index, src)
    data, source = op.cast(self, dtype), op.cast(source, dtype)

    def put(target: Value, value: Number, reduction: str = "none") -> Value:
        return _scattered(op, target, dim, index, _source(op, target, index, value), reduction)

    if not include_self:
        # Only elements that are written lose their initial value.
        data = put(data, _neutral(reduce, dtype))
    result = _scattered(op, data, dim, index, source, _REDUCTIONS[reduce])
    if reduce == "mean":
        ones = op.expand(op.const(1, dtype), dims_of(self))
        counts = ones if include_self else put(ones, 0)
        result = _quotient(op, result, put(counts, 1, "add"))
    return op.cast(result, dtype_of(self))


# ---------------------------------------------------------------------- one index per row
@lowers("aten.index_add.default")
def index_add(
    op: OpBuilder, self: Value, dim: int, index: Value, source: Value, *, alpha: Number = 1
) -> Value:
    """self with alpha * source added to rows of one axis."""
    if alpha != 1:
        factor = as_value(op, alpha, dtype_of(self))
        source = op.And(source, factor) if is_bool(self) else op.Mul(source, factor)
    return _rows_put(op, self, dim, index, source, accumulate=True)


@lowers("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor", renamed={"source": "value"})
@lowers("aten.index_copy.default")
def index_copy(op: OpBuilder, self: Value, dim: int, index: Value, source: Value | Number) -> Value:
    """self with rows of one axis replaced by source, or by one value."""
    return _rows_put(op, self, dim, index, as_value(op, source, dtype_of(self)), accumulate=False)


@lowers("aten.index_reduce.default")
def index_reduce(
    op: OpBuilder,
    self: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    """Rows of source reduced into rows of one axis, with or without the initial value of self."""
    axis, dims = wrap(dim, rank_of(source)), dims_of(source)
    rows = op.reshape(index, [d if a == axis else 1 for a, d in enumerate(dims)])
    places = op.expand(rows, dims)
    return scatter_reduce(op, self, dim, places, source, reduce, include_self=include_self)


# ---------------------------------------------------------------------- segments
@lowers("aten.segment_reduce.default")
def segment_reduce(
    op: OpBuilder,
    data: Value,
    reduce: str,
    *,
    lengths: Value | None = None,
    offsets: Value | None = None,
    axis: int = 0,
    initial: Number | None = None,
) -> Value:
    """The reduction of segments of an axis, given by their lengths or offsets."""
    axis, dims, dtype = wrap(axis, rank_of(data)), dims_of(data), dtype_of(data)
    if offsets is not None:
        ends = op.slice(op.cast(offsets, torch.int64), axis, 1, 2**62)
        starts = op.slice(op.cast(offsets, torch.int64), axis, 0, -1)
        counts, segments = op.Sub(ends, starts), dims_of(offsets)[axis] - 1
    else:
        assert lengths is not None
        counts, segments = op.cast(lengths, torch.int64), dims_of(lengths)[axis]
        ends = op.CumSum(counts, op.const(axis))
    places = op.Range(0, op.dim(dims[axis]), 1)
    # The segment of an element is the number of ends at or before it, also behind empty segments.
    passed = op.GreaterOrEqual(op.Unsqueeze(places, [1]), op.Unsqueeze(ends, [-2]))
    segment = op.ReduceSum(op.cast(passed, torch.int64), [-1], keepdims=0)
    after = [1] * (len(dims) - axis - 1)
    shape = [*dims[:axis], segments, *dims[axis + 1 :]]
    wide = reduction_dtype(dtype)
    name = {"max": "amax", "min": "amin"}.get(reduce, reduce)
    start = as_value(op, _neutral(name, wide) if initial is None else initial, wide)
    rows = op.expand(op.reshape(segment, [*dims[: axis + 1], *after]), dims)
    more = [*dims[:axis], as_dim(segments + 1), *dims[axis + 1 :]]  # elements after the last end
    target = op.expand(start, more)
    reduced = op.ScatterElements(
        target, rows, op.cast(data, wide), axis=axis, reduction=_REDUCTIONS[name]
    )
    reduced = set_dims(op.slice(reduced, axis, 0, segments), shape)
    if reduce != "mean":
        return op.cast(reduced, dtype)
    per_segment = op.reshape(counts, [*dims[:axis], segments, *after])
    filled = op.Greater(per_segment, 0)
    mean = op.Div(reduced, op.cast(op.Max(per_segment, 1), wide))
    # As in torch, the mean of an empty segment without an initial value is NaN.
    empty = start if initial is not None else op.const(torch.nan, wide)
    return op.cast(op.Where(filled, mean, empty), dtype)


# ---------------------------------------------------------------------- parts
def _scattered(
    op: OpBuilder, self: Value, dim: int, index: Value, src: Value, reduction: str
) -> Value:
    """Return a scatter of the leading part of src that has the shape of the indices."""
    if 0 in dims_of(index):
        return self
    rank = rank_of(self)
    dims = [*dims_of(index)] if rank_of(index) else [1]
    source = op.reshape(src, [1]) if rank_of(src) == 0 else src
    for axis, (want, have) in enumerate(zip(dims, dims_of(source), strict=True)):
        # torch ignores elements of src behind the indices; ONNX requires equal shapes.
        if want != have:
            source = set_dims(
                op.slice(source, axis, 0, want), [*dims[: axis + 1], *dims_of(source)[axis + 1 :]]
            )
    # ScatterElements requires at least one axis.
    data = op.reshape(self, [1]) if rank == 0 else self
    written = op.ScatterElements(
        data, op.reshape(index, dims), source, axis=wrap(dim, rank), reduction=reduction
    )
    return op.reshape(written, []) if rank == 0 else written


def _quotient(op: OpBuilder, total: Value, counts: Value) -> Value:
    """Return total / counts, rounded down for integers."""
    quotient = op.Div(total, counts)
    if is_float(total):
        return quotient
    # Div truncates toward zero: with positive counts, a negative remainder means one too many.
    remainder = op.Sub(total, op.Mul(quotient, counts))
    below = op.Less(remainder, op.like(remainder, 0))
    return op.Sub(quotient, op.cast(below, dtype_of(total)))


def _neutral(reduce: str, dtype: torch.dtype) -> Number:
    """Return the neutral element of a reduction."""
    if _REDUCTIONS[reduce] in ("add", "mul"):
        return 0 if _REDUCTIONS[reduce] == "add" else 1
    if dtype.is_floating_point:
        return torch.inf if reduce == "amin" else -torch.inf
    info = torch.iinfo(dtype)
    return info.max if reduce == "amin" else info.min


def _source(op: OpBuilder, self: Value, index: Value, src: Value | Number) -> Value:
    """Return a source, or a number for every index in the dtype of self."""
    if isinstance(src, Value):
        return src
    return op.expand(as_value(op, src, dtype_of(self)), dims_of(index) or (1,))


def _rows_put(
    op: OpBuilder, self: Value, dim: int, index: Value, rows: Value, *, accumulate: bool
) -> Value:
    """Return self with rows assigned or added along one axis."""
    if rank_of(self) == 0:
        written = _rows_put(op, op.reshape(self, [1]), 0, index, rows, accumulate=accumulate)
        return op.reshape(written, [])
    axis = wrap(dim, rank_of(self))
    places = op.reshape(index, [1]) if rank_of(index) == 0 else index
    if rank_of(rows) not in (0, rank_of(self)):
        dims: Sequence[Dim] = dims_of(rows)
        rows = op.reshape(rows, [*dims[:axis], 1, *dims[axis:]])
    return index_put(op, self, [*[None] * axis, places], rows, accumulate=accumulate)
