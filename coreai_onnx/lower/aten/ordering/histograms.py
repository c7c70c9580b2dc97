"""Binary search, set membership, and counts of values in bins: histograms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


@lowers("aten.histc.default")
def histc(op: OpBuilder, self: Value, bins: int = 100, min: Number = 0, max: Number = 0) -> Value:
    """The number of elements in each of equal bins, by default between the extremes."""
    x = flat(op, self)
    dtype = dtype_of(x)
    wide = op.cast(x, torch.float64)
    if dims_of(x) == (0,):
        return filled(op, [bins], 0, dtype)
    low, high = op.const(float(min), torch.float64), op.const(float(max), torch.float64)
    # As in torch, equal limits stand for the extremes of the elements.
    if min == max:
        low, high = (op.node(f"Reduce{e}", wide, keepdims=0) for e in ("Min", "Max"))
        flat_range = op.Equal(low, high)
        low = op.Where(flat_range, op.Sub(low, 1.0), low)
        high = op.Where(flat_range, op.Add(high, 1.0), high)
    inside = op.And(op.GreaterOrEqual(wide, low), op.LessOrEqual(wide, high))
    place = op.Div(op.Mul(op.Sub(wide, low), float(bins)), op.Sub(high, low))
    # The last bin is closed; one more bin collects the elements outside.
    index = op.Min(op.cast(op.Where(inside, place, 0.0), torch.int64), bins - 1)
    index = op.Where(inside, index, bins)
    target = filled(op, [bins + 1], 0, torch.float32)
    ones = op.expand(op.const(1.0), dims_of(x))
    counts = op.ScatterElements(target, index, ones, axis=0, reduction="add")
    return op.cast(op.slice(counts, 0, 0, bins), dtype)


@lowers("aten.histogram.bins_tensor")
def histogram_edges(
    op: OpBuilder, self: Value, bins: Value, *, weight: Value | None = None, density: bool = False
) -> tuple[Value, Value]:
    """The number of elements, or the sum of weights, between given edges."""
    (count,) = dims_of(bins)
    return _histogram(op, flat(op, self), [bins], [count], weight, density=density), bins


@lowers("aten.histogram.bin_ct")
def histogram(
    op: OpBuilder,
    self: Value,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Value | None = None,
    density: bool = False,
) -> tuple[Value, Value]:
    """The number of elements, or the sum of weights, in each of equal bins."""
    x = flat(op, self)
    edges = _equal_edges(op, x, bins, None if range is None else range[:2])
    return _histogram(op, x, [edges], [bins + 1], weight, density=density), edges


def _equal_edges(op: OpBuilder, column: Value, bins: int, limits: Sequence[float] | None) -> Value:
    """Return bins + 1 edges between the given or found extremes, widened if they are equal."""
    dtype = dtype_of(column)
    if limits is not None and limits[0] != limits[1]:
        return op.const(torch.linspace(limits[0], limits[1], bins + 1, dtype=dtype))
    if limits is not None:
        return op.const(torch.linspace(limits[0] - 0.5, limits[1] + 0.5, bins + 1, dtype=dtype))
    if 0 in dims_of(column):
        return op.const(torch.linspace(0, 1, bins + 1, dtype=dtype))
    low, high = (op.node(f"Reduce{e}", column, keepdims=0) for e in ("Min", "Max"))
    single = op.Equal(low, high)
    low = op.Where(single, op.Sub(low, 0.5), low)
    high = op.Where(single, op.Add(high, 0.5), high)
    width = op.Div(op.Sub(high, low), float(bins))
    steps = op.const(torch.arange(bins + 1, dtype=dtype))
    # torch counts from the nearer end
    front = op.Add(low, op.Mul(steps, width))
    back = op.Sub(high, op.Mul(op.Sub(float(bins), steps), width))
    edges = op.Where(op.const(torch.arange(bins + 1) < (bins + 1) // 2), front, back)
    return set_dims(edges, (bins + 1,))


def _histogram(
    op: OpBuilder,
    rows: Value,
    edges: Sequence[Value],
    counts: Sequence[Dim],
    weight: Value | None,
    *,
    density: bool,
) -> Value:
    """Add the weights of points to the bins between edges; the last bin is closed."""
    dtype = dtype_of(rows)
    sizes = [int(c) - 1 for c in counts]
    points = rows if rank_of(rows) == 2 else op.unsqueeze(rows, [1])
    count = dims_of(points)[0]
    index, inside = _bin_index(op, points, edges, sizes)
    ones = op.expand(op.const(1, dtype), [count])
    amounts = ones if weight is None else flat(op, op.cast(weight, dtype))
    # A point outside has bin 0, to which it must add nothing.
    amounts = op.Where(inside, amounts, 0.0)
    total = int(numel(sizes))
    target = filled(op, [total], 0, dtype)
    summed = op.ScatterElements(target, index, amounts, axis=0, reduction="add")
    result = op.reshape(set_dims(summed, (total,)), sizes)
    if not density:
        return result
    result = op.Div(result, op.ReduceSum(result, keepdims=0))
    for axis, edge in enumerate(edges):
        widths = op.Sub(op.slice(edge, 0, 1, sizes[axis] + 1), op.slice(edge, 0, 0, sizes[axis]))
        shape = [sizes[axis] if i == axis else 1 for i in range(len(sizes))]
        result = op.Div(result, op.reshape(set_dims(widths, (sizes[axis],)), shape))
    return result


def _bin_index(
    op: OpBuilder, points: Value, edges: Sequence[Value], sizes: Sequence[int]
) -> tuple[Value, Value]:
    """Return the flat bin of every row (0 outside), and whether the row is in a bin."""
    count = dims_of(points)[0]
    index: Any = op.const(0)
    inside: Any = op.const(True)
    for axis, (edge, size) in enumerate(zip(edges, sizes, strict=True)):
        x = set_dims(op.Gather(points, op.const(axis), axis=1), (count,))
        last = op.Gather(edge, op.const(size), axis=0)
        place = op.Sub(insertion_index(op, edge, x, right=True), 1)
        # The last bin is closed.
        place = op.Where(op.Equal(x, last), size - 1, place)
        fits = op.And(op.GreaterOrEqual(place, 0), op.LessOrEqual(x, last))
        inside = op.And(inside, fits)
        index = op.Add(op.Mul(index, size), place)
    return set_dims(op.Where(inside, index, 0), (count,)), set_dims(inside, (count,))


@lowers("aten._histogramdd_bin_edges.default")
def histogramdd_edges(
    op: OpBuilder, self: Value, bins: Sequence[int], *, range: Sequence[float] | None = None
) -> list[Value]:
    """The edges of equal bins in every coordinate."""
    rows = _as_rows(op, self)
    count = dims_of(rows)[0]
    edges = []
    for axis, number in enumerate(bins):
        column = set_dims(op.Gather(rows, op.const(axis), axis=1), (count,))
        bounds = None if range is None else range[2 * axis : 2 * axis + 2]
        edges.append(_equal_edges(op, column, number, bounds))
    return edges


def _as_rows(op: OpBuilder, x: Value) -> Value:
    dims = dims_of(x)
    return op.reshape(x, [numel(dims[:-1]), dims[-1]])


@lowers("aten._histogramdd_from_bin_cts.default")
def histogramdd_counts(
    op: OpBuilder,
    self: Value,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Value | None = None,
    density: bool = False,
) -> Value:
    """The number of rows in each of equal bins."""
    edges = histogramdd_edges(op, self, bins, range=range)
    sizes = [b + 1 for b in bins]
    return _histogram(op, _as_rows(op, self), edges, sizes, weight, density=density)


@lowers("aten._histogramdd_from_bin_tensors.default")
def histogramdd_tensors(
    op: OpBuilder,
    self: Value,
    bins: Sequence[Value],
    *,
    weight: Value | None = None,
    density: bool = False,
) -> Value:
    """The number of rows between given edges."""
    sizes = [dims_of(b)[0] for b in bins]
    return _histogram(op, _as_rows(op, self), bins, sizes, weight, density=density)
