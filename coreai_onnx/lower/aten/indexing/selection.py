"""Reads and writes of elements by index tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.lower.aten.indexing.advanced_index import is_mask, read, resolve, write
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.promotion import as_value
from coreai_onnx.lower.nodes.tensors import flat
from coreai_onnx.lower.nodes.values import (
    Number,
    Value,
    as_dim,
    dims_of,
    dtype_of,
    is_bool,
    rank_of,
    set_dims,
    wrap,
)
from coreai_onnx.lower.walk.registry import lowers


# ---------------------------------------------------------------------- reading
@lowers("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(op: OpBuilder, self: Value, indices: Sequence[Value | None]) -> Value:
    """self[indices], by positions and masks on any axes."""
    resolved = resolve(op, self, indices)
    return self if resolved is None else read(op, resolved)


@lowers("aten.index_select.default")
def index_select(op: OpBuilder, self: Value, dim: int, index: Value) -> Value:
    """The slices of one axis in the order of a 1-D index."""
    if rank_of(self) == 0:
        return self
    rows = op.reshape(index, [1]) if rank_of(index) == 0 else index
    return op.Gather(self, rows, axis=wrap(dim, rank_of(self)))


@lowers("aten.gather.default")
def gather(op: OpBuilder, self: Value, dim: int, index: Value) -> Value:
    """result[i][j] = self[index[i][j]][j] along ``dim``."""
    dims = dims_of(index)
    if 0 in dims:
        return op.expand(op.like(self, 0), dims)
    # GatherElements requires at least one axis.
    source = op.reshape(self, [1]) if rank_of(self) == 0 else self
    rows = op.reshape(index, [1]) if rank_of(index) == 0 else index
    elements = op.GatherElements(source, rows, axis=wrap(dim, rank_of(self)))
    return op.reshape(elements, dims) if len(dims) == 0 else elements


@lowers("aten.take_along_dim.default")
def take_along_dim(op: OpBuilder, self: Value, indices: Value, dim: int | None = None) -> Value:
    """Gather with the other axes broadcast; without ``dim``, of the flattened tensors."""
    if dim is None:
        return gather(op, flat(op, self), 0, flat(op, indices))
    axis = wrap(dim, rank_of(self))
    source, rows = list(dims_of(self)), list(dims_of(indices))
    for a, (s, r) in enumerate(zip(source, rows, strict=True)):
        if a != axis:
            source[a] = rows[a] = s if r == 1 else r
    return gather(op, op.expand(self, source), axis, op.expand(indices, rows))


@lowers("aten.take.default", whole=True)  # its decomposition reads an index without axes
def take(op: OpBuilder, self: Value, index: Value) -> Value:
    """The flattened tensor's elements at these positions."""
    if 0 in dims_of(index):
        return op.expand(op.like(self, 0), dims_of(index))
    return op.Gather(flat(op, self), index, axis=0)


@lowers("aten._unsafe_masked_index.default")
def unsafe_masked_index(
    op: OpBuilder, self: Value, mask: Value, indices: Sequence[Value | None], fill: Number
) -> Value:
    """self[indices] where the mask is true, else fill; indices under a false mask are ignored."""
    elements = index(op, self, _clamped(op, self, indices))
    return op.Where(mask, elements, as_value(op, fill, dtype_of(self)))


def _clamped(op: OpBuilder, self: Value, indices: Sequence[Value | None]) -> list[Value | None]:
    """Return positions clamped to the source."""
    return [
        # Under a false mask an index may be out of range, which Gather rejects at run time.
        i if i is None else op.Min(op.Max(op.cast(i, torch.int64), 0), op.dim(as_dim(size - 1)))
        for i, size in zip(indices, dims_of(self), strict=False)
    ]


# ---------------------------------------------------------------------- writing
@lowers("aten._unsafe_masked_index_put_accumulate.default")
def unsafe_masked_index_put_accumulate(
    op: OpBuilder, self: Value, mask: Value, indices: Sequence[Value | None], values: Value
) -> Value:
    """self with values added to self[indices] where the mask is true."""
    # Where the mask is false, zero is added to an element that clamping chose.
    chosen = op.Where(mask, values, op.like(values, 0))
    places = [
        i
        if i is None
        else op.Max(
            op.Min(op.cast(i, torch.int64), op.dim(as_dim(size - 1))), op.dim(as_dim(-size))
        )
        for i, size in zip(indices, dims_of(self), strict=False)
    ]
    return index_put(op, self, places, set_dims(chosen, dims_of(values)), accumulate=True)


@lowers("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(
    op: OpBuilder,
    self: Value,
    indices: Sequence[Value | None],
    values: Value,
    *,
    accumulate: bool = False,
) -> Value:
    """self with self[indices] replaced by values, or with values added to it."""
    values = op.cast(values, dtype_of(self))
    # Where reads and writes once; the positions of a mask need NonZero, of unknown size.
    selected = _selection(op, self, indices, values)
    if selected is not None:
        mask, value = selected
        return op.Where(mask, _sum(op, self, value) if accumulate else value, self)
    resolved = resolve(op, self, indices)
    if resolved is None:
        block = op.expand(values, dims_of(self))
        return _sum(op, self, block) if accumulate else block
    return write(op, resolved, values, accumulate=accumulate)


def _sum(op: OpBuilder, x: Value, y: Value) -> Value:
    return op.Or(x, y) if is_bool(x) else op.Add(x, y)


def _selection(
    op: OpBuilder, self: Value, indices: Sequence[Value | None], values: Value
) -> tuple[Value, Value] | None:
    """Return the mask and the value, if there is one mask and one value for all its elements."""
    present = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if len(present) != 1 or not is_mask(present[0][1]) or rank_of(present[0][1]) == 0:
        return None
    axis, mask = present[0]
    after = rank_of(self) - axis - rank_of(mask)
    dims = list(dims_of(values))
    if len(dims) > after:
        # One value per true element: its place depends on the elements before it.
        if dims[len(dims) - after - 1] != 1:
            return None
        here = len(dims) - after - 1
        dims[here : here + 1] = [1] * rank_of(mask)
    wide = op.reshape(op.cast(mask, torch.bool), [*dims_of(mask), *[1] * after])
    return wide, op.reshape(values, dims)


@lowers("aten.put.default")
def put(
    op: OpBuilder, self: Value, index: Value, source: Value, *, accumulate: bool = False
) -> Value:
    """self with source assigned to, or added to, its flattened elements at these positions."""
    rows, block = flat(op, index), flat(op, source)
    return op.reshape(
        index_put(op, flat(op, self), [rows], block, accumulate=accumulate), dims_of(self)
    )
