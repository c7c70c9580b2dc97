"""Binary search, set membership and counts."""

from __future__ import annotations

import onnx_ir as ir
import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.promotion import promote
from coreai_onnx.lower.nodes.tensors import filled, flat, reduced
from coreai_onnx.lower.nodes.values import (
    Dim,
    Number,
    Value,
    dims_of,
    dtype_of,
    numel,
    rank_of,
    set_dims,
)
from coreai_onnx.lower.walk.registry import lowers


# ---------------------------------------------------------------------- sorted sequences
def insertion_index(op: OpBuilder, sequence: Value, x: Value | Number, *, right: bool) -> Value:
    """Return the number of elements of a sorted sequence below each value (or equal, if right)."""
    sequence, x = promote(op, sequence, x if isinstance(x, ir.Value) else op.const(x))
    row = op.unsqueeze(sequence, [rank_of(sequence) - 1]) if rank_of(sequence) > 1 else sequence
    column = op.unsqueeze(x, [rank_of(x)])
    # Every element is compared: a binary search would need a loop.
    beyond = op.node("Greater" if right else "GreaterOrEqual", row, column)
    below = op.cast(op.Not(beyond), torch.int64)
    below = set_dims(below, (*dims_of(x), dims_of(sequence)[-1]))
    return reduced(op, "ReduceSum", below, -1, keepdim=False)


@lowers("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(
    op: OpBuilder,
    sorted_sequence: Value,
    self: Value | Number,
    *,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    """The insertion index of each value in a sorted sequence, before or after equal elements."""
    if sorter is not None:
        axis = rank_of(sorted_sequence) - 1
        dims = dims_of(sorted_sequence)
        sorted_sequence = set_dims(
            op.GatherElements(sorted_sequence, op.cast(sorter, torch.int64), axis=axis), dims
        )
    return insertion_index(op, sorted_sequence, self, right=right or side == "right")


@lowers("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def bucketize(
    op: OpBuilder, self: Value | Number, boundaries: Value, *, right: bool = False
) -> Value:
    """The bin of each value between sorted boundaries."""
    return insertion_index(op, boundaries, self, right=right)


# ---------------------------------------------------------------------- sets
@lowers("aten.isin.Scalar_Tensor", renamed={"elements": "element"})
@lowers("aten.isin.Tensor_Tensor")
def isin(
    op: OpBuilder, elements: Value | Number, test_elements: Value, *, invert: bool = False
) -> Value:
    """Whether each element is among the test elements."""
    elements, test_elements = promote(op, elements, test_elements)
    column = op.unsqueeze(elements, [rank_of(elements)])
    # All pairs are compared: ONNX has no op for sets.
    equal = op.Equal(column, flat(op, test_elements))
    counted = op.cast(equal, torch.int64)
    set_dims(counted, (*dims_of(elements), numel(dims_of(test_elements))))
    hits = op.cast(reduced(op, "ReduceSum", counted, -1, keepdim=False), torch.bool)
    return op.Not(hits) if invert else hits


@lowers("aten.isin.Tensor_Scalar")
def isin_scalar(
    op: OpBuilder, elements: Value, test_element: Number, *, invert: bool = False
) -> Value:
    """Whether each element equals a number."""
    left, right = promote(op, elements, test_element)
    equal = op.Equal(left, right)
    return op.Not(equal) if invert else equal


# ---------------------------------------------------------------------- counts
@lowers("aten.bincount.default")
def bincount(op: OpBuilder, self: Value, weights: Value | None = None, minlength: Dim = 0) -> Value:
    """The number of occurrences of each of 0, 1, …, or the sum of their weights."""
    (size,) = dims_of(self)
    dtype = torch.int64 if weights is None else dtype_of(weights)
    if weights is not None and dtype not in (torch.float32, torch.float64):
        # torch sums weights of other dtypes in float64.
        dtype = torch.float64
    if size == 0:
        return filled(op, [minlength], 0, torch.int64)
    index = op.cast(self, torch.int64)
    length = op.Add(op.ReduceMax(index, keepdims=0), 1)
    length = op.Max(length, op.dim(minlength))
    target = op.Expand(op.const(0, dtype), op.unsqueeze(length, [0]))
    ones = op.expand(op.const(1, dtype), [size]) if weights is None else op.cast(weights, dtype)
    return op.ScatterElements(target, index, ones, axis=0, reduction="add")
