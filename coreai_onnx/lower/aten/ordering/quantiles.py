"""Quantiles, with the interpolation modes of torch."""

from __future__ import annotations

import torch

from coreai_onnx.lower.aten.ordering.sorting import ranked
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.tensors import flat, move_last
from coreai_onnx.lower.nodes.values import Value, dims_of, dtype_of, rank_of, set_dims, wrap
from coreai_onnx.lower.walk.registry import lowers


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
