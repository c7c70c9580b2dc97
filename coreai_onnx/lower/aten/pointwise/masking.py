"""Elements selected by masks, and the positions of nonzero elements."""

from __future__ import annotations

import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.inference import broadcast_dims
from coreai_onnx.lower.nodes.promotion import as_value
from coreai_onnx.lower.nodes.values import Dim, Number, Value, dims_of, dtype_of, numel, rank_of
from coreai_onnx.lower.walk.registry import lowers


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(op: OpBuilder, self: Value, mask: Value, value: Value | Number) -> Value:
    """Value where the mask is true, else self."""
    return op.Where(op.cast(mask, torch.bool), as_value(op, value, dtype_of(self)), self)


@lowers("aten.masked_select.default")
def masked_select(op: OpBuilder, self: Value, mask: Value) -> Value:
    """The elements under a mask, in order."""
    dims = broadcast_dims(dims_of(self), dims_of(mask))
    chosen = op.reshape(op.expand(op.cast(mask, torch.bool), dims), [numel(dims)])
    # the schema of Compress does not include bfloat16
    source = op.cast(self, torch.float32) if dtype_of(self) == torch.bfloat16 else self
    return op.Compress(op.reshape(op.expand(source, dims), [numel(dims)]), chosen)


@lowers("aten.masked_scatter.default")
def masked_scatter(op: OpBuilder, self: Value, mask: Value, source: Value) -> Value:
    """Self with the elements under a mask replaced by the first elements of source."""
    dims = broadcast_dims(dims_of(self), dims_of(mask)) or (1,)
    data = op.expand(self, dims)
    chosen = op.expand(op.cast(mask, torch.bool), dims)
    rows = op.Transpose(op.NonZero(chosen), perm=[1, 0])
    count = op.Shape(rows, start=0, end=1)
    values = op.Slice(op.reshape(source, [numel(dims_of(source))]), [0], count, [0])
    written = op.ScatterND(data, rows, values)
    return op.reshape(written, []) if rank_of(self) == 0 and rank_of(mask) == 0 else written


@lowers("aten.nonzero.default")
def nonzero(op: OpBuilder, self: Value) -> Value:
    """The positions of the nonzero elements, one per row; rows of a 0-d tensor have no columns."""
    if rank_of(self) == 0:
        count = op.reshape(op.cast(op.cast(self, torch.bool), torch.int64), [1])
        return _empty_rows(op, count)
    places = op.NonZero(op.cast(self, torch.bool))
    return op.transpose(places, [1, 0]) if rank_of(self) > 1 else op.Reshape(places, [-1, 1])


@lowers("aten.nonzero_static.default")
def nonzero_static(op: OpBuilder, self: Value, *, size: Dim, fill_value: int = -1) -> Value:
    """The first ``size`` rows of nonzero, padded with rows of the fill value."""
    rank = rank_of(self)
    if rank == 0 or size == 0:
        return _empty(op, [size, rank])
    rows = op.Transpose(op.NonZero(op.cast(self, torch.bool)), perm=[1, 0])
    filling = op.expand(op.const([[fill_value] * rank]), [size, rank])
    return op.slice(op.Concat(rows, filling, axis=0), 0, 0, size)


def _empty_rows(op: OpBuilder, count: Value) -> Value:
    return op.Expand(_empty(op, [1, 0]), op.Concat(count, op.const([0]), axis=0))


def _empty(op: OpBuilder, dims: list[Dim]) -> Value:
    if all(isinstance(d, int) for d in dims):
        return op.const(torch.zeros([int(d) for d in dims], dtype=torch.int64))
    return op.expand(op.const(0), dims)
