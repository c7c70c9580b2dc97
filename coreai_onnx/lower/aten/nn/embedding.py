"""Embeddings and embedding bags."""

from __future__ import annotations

import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.tensors import reduction_dtype
from coreai_onnx.lower.nodes.values import Dim, Value, dims_of, dtype_of
from coreai_onnx.lower.walk.registry import lowers

_SUM, _MEAN, _MAX = 0, 1, 2


@lowers("aten.embedding.default")
def embedding(op: OpBuilder, weight: Value, indices: Value) -> Value:
    """weight[indices]; the padding row has no special role in inference."""
    return op.Gather(weight, indices, axis=0)


@lowers("aten.embedding_renorm.default")
def embedding_renorm(
    op: OpBuilder, self: Value, indices: Value, max_norm: float, norm_type: float
) -> Value:
    """The table, with the rows at the indices scaled down to a norm of at most max_norm."""
    size = dims_of(self)[0]
    power = op.Pow(op.Abs(self), norm_type)
    norms = op.Pow(op.ReduceSum(power, [1], keepdims=1), 1 / norm_type)
    rows = op.Reshape(indices, [-1, 1])
    # Rows are marked, not scaled per index: a row that occurs twice is scaled once.
    named = op.ScatterND(
        op.expand(op.const(False), [size]),
        op.cast(rows, torch.int64),
        op.Expand(op.const(True), op.Shape(rows, end=1)),
    )
    large = op.And(op.Greater(norms, max_norm), op.reshape(named, [size, 1]))
    # torch adds the same 1e-7.
    scale = op.Where(large, op.Div(max_norm, op.Add(norms, 1e-7)), op.like(norms, 1))
    return op.Mul(self, scale)


@lowers("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def _embedding_bag(
    op: OpBuilder,
    weight: Value,
    indices: Value,
    offsets: Value,
    mode: int = 0,
    per_sample_weights: Value | None = None,
    *,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Value, Value, Value, Value]:
    """The sum, mean or maximum of the rows of every bag; a bag is a run of indices.

    A negative padding_idx means no padding row. The results are the bags, the bag of every index,
    the counts and, for a maximum, its indices.
    """
    columns = dims_of(weight)[1]
    count = dims_of(offsets)[0] - int(include_last_offset)
    places = op.cast(indices, torch.int64)
    bag_of = _bag_of(op, places, offsets)
    valid = None if padding_idx < 0 else op.Not(op.Equal(places, padding_idx))
    ones = (
        op.Expand(op.const(1), op.Shape(places)) if valid is None else op.cast(valid, torch.int64)
    )
    target = op.Unsqueeze(bag_of, [1])
    sizes = op.ScatterND(op.expand(op.const(0), [count]), target, ones, reduction="add")
    dtype = reduction_dtype(dtype_of(weight))
    rows = op.cast(op.Gather(weight, places, axis=0), dtype)
    if per_sample_weights is not None:
        rows = op.Mul(rows, op.Unsqueeze(op.cast(per_sample_weights, dtype), [1]))
    neutral = -torch.inf if mode == _MAX else 0
    if valid is not None:
        rows = op.Where(op.Unsqueeze(valid, [1]), rows, op.const(neutral, dtype))
    start = op.expand(op.const(neutral, dtype), [count, columns])
    bags = op.ScatterND(start, target, rows, reduction="max" if mode == _MAX else "add")
    per_bag = op.Unsqueeze(sizes, [1])
    if mode == _MEAN:
        bags = op.Div(bags, op.cast(op.Max(per_bag, 1), dtype))
    # torch's sizes have an entry for the last offset too
    stored = op.Concat(sizes, op.const([0]), axis=0) if include_last_offset else sizes
    if mode != _MAX:
        (length,) = op.scope.traced.result[1].shape
        if isinstance(length, int) and length == 0:  # torch ignores the bags for the sum
            bag_of = op.const([])
        return bags, bag_of, stored, op.Identity(sizes)
    bags = op.Where(op.Greater(per_bag, 0), bags, op.const(0, dtype))
    return bags, bag_of, stored, _winners(op, rows, bags, places, bag_of, [count, columns])


def _bag_of(op: OpBuilder, indices: Value, offsets: Value) -> Value:
    """Return the bag of every index: the number of bags that begin at or before it, minus one."""
    length = op.Shape(indices)
    places = op.Reshape(op.cast(offsets, torch.int64), [-1, 1])
    ones = op.Expand(op.const(1), op.Shape(places, end=1))
    # One place more than indices: an empty last bag begins after them.
    none = op.Expand(op.const(0), op.Add(length, 1))
    begun = op.ScatterND(none, places, ones, reduction="add")
    return op.Sub(op.Slice(op.CumSum(begun, op.const(0)), [0], length, [0]), 1)


def _winners(
    op: OpBuilder, rows: Value, bags: Value, indices: Value, bag_of: Value, dims: list[Dim]
) -> Value:
    """Return the index of the maximum of every bag and column, -1 for an empty bag."""
    equal = op.Equal(rows, op.Gather(bags, bag_of, axis=0))
    here = op.Where(equal, op.Unsqueeze(indices, [1]), op.const(-1))
    lowest = op.expand(op.const(-1), dims)
    return op.ScatterND(lowest, op.Unsqueeze(bag_of, [1]), here, reduction="max")
