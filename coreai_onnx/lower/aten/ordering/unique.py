"""Distinct elements and slices, and runs of equal ones."""

from __future__ import annotations

import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.tensors import flat, positions
from coreai_onnx.lower.nodes.values import (
    Value,
    dims_of,
    dtype_of,
    ir_dtype,
    ir_dtype_of,
    is_float,
    rank_of,
    set_dims,
    wrap,
)
from coreai_onnx.lower.walk.registry import lowers

Distinct = tuple[Value, Value | None, Value | None]
"""Distinct elements, the index of each element among them, and counts; None if not requested."""


@lowers("aten._unique.default", "aten._unique2.default", "aten.unique_dim.default")
def unique(
    op: OpBuilder,
    self: Value,
    dim: int | None = None,
    *,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Distinct:
    """The sorted distinct elements or slices, the index of each among them, and their counts."""
    if dim is None:
        results = _distinct(op, flat(op, self), self, None)
    else:
        results = _distinct(op, self, self, wrap(dim, rank_of(self)))
    return _asked(results, inverse=return_inverse, counts=return_counts)


def _asked(results: tuple[Value, Value, Value], *, inverse: bool, counts: bool) -> Distinct:
    """Replace outputs that were not requested, which have other sizes in torch."""
    return results[0], results[1] if inverse else None, results[2] if counts else None


def _distinct(op: OpBuilder, x: Value, like: Value, axis: int | None) -> tuple[Value, Value, Value]:
    # onnxruntime has no kernel of Unique for most integers.
    key = x if is_float(x) else op.cast(x, torch.int64)
    if 0 in dims_of(x):
        none = op.const([], torch.int64)
        inverse = op.reshape(none, dims_of(like)) if axis is None else none
        return x, inverse, none
    values, _, inverse, counts = op.Unique(key, sorted=1, axis=axis, _outputs=4)
    values.dtype = ir_dtype_of(key)
    inverse.dtype = counts.dtype = ir_dtype(torch.int64)
    if axis is None:
        set_dims(inverse, (dims_of(x)[0],))
        inverse = op.reshape(inverse, dims_of(like))
    return op.cast(values, dtype_of(x)), inverse, counts


@lowers("aten.unique_consecutive.default", "aten.unique_dim_consecutive.default")
def unique_consecutive(
    op: OpBuilder,
    self: Value,
    *,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Distinct:
    """One element or slice of every run of equal ones, the run of each, and the lengths."""
    if dim is None:
        values, inverse, counts = _runs(op, flat(op, self), 0)
        results = values, op.reshape(inverse, dims_of(self)), counts
    else:
        results = _runs(op, self, wrap(dim, rank_of(self)))
    return _asked(results, inverse=return_inverse, counts=return_counts)


def _runs(op: OpBuilder, x: Value, axis: int) -> tuple[Value, Value, Value]:
    dims = dims_of(x)
    size = dims[axis]
    if 0 in dims:
        none = op.const([], torch.int64)
        return x, none, none
    later, earlier = op.slice(x, axis, 1, 2**63 - 1), op.slice(x, axis, 0, -1)
    differ = op.Not(op.Equal(later, earlier))
    others = [i for i in range(len(dims)) if i != axis]
    steps = op.cast(differ, torch.int64)
    if others:
        steps = op.ReduceMax(steps, others, keepdims=0)
    # The first element always begins a run.
    starts = op.Concat(op.const([1]), steps, axis=0)
    set_dims(starts, (size,))
    first = op.cast(starts, torch.bool)
    # Compress does not support bfloat16
    wide = op.cast(x, torch.float32) if dtype_of(x) == torch.bfloat16 else x
    values = op.Compress(wide, first, axis=axis)
    inverse = set_dims(op.Sub(op.CumSum(starts, op.const(0)), 1), (size,))
    begins = op.Compress(positions(op, size), first, axis=0)
    ends = op.Concat(op.slice(begins, 0, 1, 2**63 - 1), op.shape([size]), axis=0)
    return values, inverse, op.Sub(ends, begins)
