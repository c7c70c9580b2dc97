"""Replacement of a part of a tensor: a slice, a row, a diagonal, a strided view."""

from __future__ import annotations

from collections.abc import Sequence

from coreai_onnx.lower.aten.indexing.selection import index_put
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.tensors import flat, strided_index
from coreai_onnx.lower.nodes.values import (
    Dim,
    Value,
    as_dim,
    dims_of,
    dtype_of,
    rank_of,
    wrap,
)
from coreai_onnx.lower.walk.registry import lowers


@lowers("aten.select_scatter.default")
def select_scatter(op: OpBuilder, self: Value, src: Value, dim: int, index: Dim) -> Value:
    """self with self.select(dim, index) replaced by src."""
    axis = wrap(dim, rank_of(self))
    row = op.unsqueeze(op.expand(src, _without(dims_of(self), axis)), [axis])
    return _spliced(op, self, row, axis, _from_begin(index, dims_of(self)[axis]))


@lowers("aten.slice_scatter.default")
def slice_scatter(
    op: OpBuilder,
    self: Value,
    src: Value,
    dim: int = 0,
    start: Dim | None = None,
    end: Dim | None = None,
    step: Dim = 1,
) -> Value:
    """self with self[start:end:step] along ``dim`` replaced by src."""
    axis = wrap(dim, rank_of(self))
    size = dims_of(self)[axis]
    first: Dim = 0 if start is None else _from_begin(start, size)
    if isinstance(first, int) and isinstance(size, int):
        # Slices clamp their bounds.
        first = min(max(first, 0), size)
    length = _length(src, axis, first, end, size, step)
    target = list(dims_of(self))
    target[axis] = length
    rows = op.expand(src, target)
    if length == 0:
        return self
    if step == 1:
        return _spliced(op, self, rows, axis, first)
    last = op.dim(as_dim(first + (length - 1) * step + 1))
    places = op.Range(op.dim(first), last, op.dim(step))
    return index_put(op, self, [*[None] * axis, op.reshape(places, [length])], rows)


@lowers("aten.diagonal_scatter.default")
def diagonal_scatter(
    op: OpBuilder, self: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    """self with the diagonal of two axes replaced by src, whose last axis runs along it."""
    rank = rank_of(self)
    first, second = wrap(dim1, rank), wrap(dim2, rank)
    rest = [a for a in range(rank) if a not in (first, second)]
    order = [first, second, *rest]
    length = dims_of(src)[-1]
    steps = op.Range(0, op.dim(length), 1)
    rows, columns = op.Add(steps, max(-offset, 0)), op.Add(steps, max(offset, 0))
    places = [op.reshape(rows, [length]), op.reshape(columns, [length])]
    block = op.transpose(src, [rank_of(src) - 1, *range(rank_of(src) - 1)])
    written = index_put(op, op.transpose(self, order), places, block)
    return op.transpose(written, sorted(range(rank), key=order.__getitem__))


@lowers("aten.as_strided_scatter.default", "prims.as_strided_scatter.default")
def as_strided_scatter(
    op: OpBuilder,
    self: Value,
    src: Value,
    size: Sequence[Dim],
    stride: Sequence[Dim],
    storage_offset: Dim | None = None,
) -> Value:
    """self, contiguous, with the elements of a strided view of its memory replaced by src."""
    places = strided_index(op, size, stride, storage_offset or 0)
    block = flat(op, op.expand(src, size))
    written = index_put(op, flat(op, self), [flat(op, places)], block)
    return op.reshape(written, dims_of(self))


# ---------------------------------------------------------------------- parts
def _spliced(op: OpBuilder, self: Value, rows: Value, axis: int, first: Dim) -> Value:
    """Return the concatenation of the rows before, the new rows, and the rows after."""
    dims = dims_of(self)
    after = as_dim(first + dims_of(rows)[axis])
    rows = op.cast(rows, dtype_of(self))
    # A Concat of slices copies rows; ScatterND would need an index for each of them.
    parts = [rows]
    if first != 0:
        parts.insert(0, op.slice(self, axis, 0, first))
    if after != dims[axis]:
        # Slice clamps the end, so that a symbolic size is not read.
        parts.append(op.slice(self, axis, after, 2**62))
    return rows if len(parts) == 1 else op.Concat(*parts, axis=axis)


def _length(src: Value, axis: int, first: Dim, end: Dim | None, size: Dim, step: Dim) -> Dim:
    """Return the number of rows of a slice: the size of the source unless it is broadcast."""
    length = dims_of(src)[axis] if rank_of(src) > axis else 1
    stop = size if end is None else _from_begin(end, size)
    if all(isinstance(d, int) for d in (first, stop, size, step)):
        return len(range(min(int(first), int(size)), min(int(stop), int(size)), int(step)))
    return length


def _from_begin(index: Dim, size: Dim) -> Dim:
    """Return a position counted from the start; a symbol stands for a size, which is positive."""
    negative = index < 0 if isinstance(index, int) else index.is_negative
    return as_dim(index + size) if negative else index


def _without(dims: Sequence[Dim], axis: int) -> list[Dim]:
    return [*dims[:axis], *dims[axis + 1 :]]
