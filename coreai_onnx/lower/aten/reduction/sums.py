"""Sums, products, means and truth over axes.

torch sums integers and booleans in int64; an axis list that is empty or absent means all axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from coreai_onnx.lower.aten.pointwise.numerics import widen
from coreai_onnx.lower.aten.reduction.exact_sums import exact_product, exact_sum
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import (
    Dim,
    Value,
    dims_of,
    dtype_of,
    is_bool,
    is_float,
    is_integer,
    is_static,
    numel,
    rank_of,
    set_dims,
    wrap_all,
)
from coreai_onnx.lower.walk.registry import lowers

Axes = Sequence[int] | int | None


def reduced(op: OpBuilder, op_type: str, x: Value, axes: Axes, *, keepdim: bool) -> Value:
    """Return an ONNX reduction over axes; a 0-d tensor is returned unchanged."""
    rank = rank_of(x)
    if rank == 0:
        return x
    over = wrap_all(axes, rank)
    kept = [1 if i in over else d for i, d in enumerate(dims_of(x)) if keepdim or i not in over]
    if 0 in kept and is_static(kept):  # onnxruntime returns wrong sizes
        return op.const(torch.zeros([int(d) for d in kept], dtype=dtype_of(x)))
    operands = (x,) if len(over) == rank else (x, over)
    return op.node(op_type, *operands, keepdims=int(keepdim))


def reduced_count(x: Value, axes: Axes) -> Dim:
    """Return the number of elements that are reduced to each result."""
    dims = dims_of(x)
    return numel([dims[a] for a in wrap_all(axes, len(dims))])


# ---------------------------------------------------------------------- sums and products
_PRIM = {"self": "inp", "dim": "dims", "dtype": "output_dtype"}


@lowers("prims.sum.default", renamed=_PRIM)
@lowers("aten.sum.default", "aten.sum.dim_IntList")
def sum_(
    op: OpBuilder,
    self: Value,
    dim: Axes = None,
    *,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Value:
    """Sum over axes, in ``dtype`` if given."""
    if dtype == torch.bool:
        return _truth(op, self, dim, keepdim=keepdim, **_ANY)
    x = _addends(op, self, dtype)
    if dtype_of(x) == dtype_of(self) == torch.int64 and 0 not in dims_of(x):
        return exact_sum(op, x, dim, keepdim=keepdim)
    return reduced(op, "ReduceSum", x, dim, keepdim=keepdim)


def _addends(op: OpBuilder, x: Value, dtype: torch.dtype | None) -> Value:
    """Return ``x`` in the accumulation dtype: as in torch, int64 (with wraparound) for integers."""
    if dtype is not None and dtype != dtype_of(x):
        x = op.cast(x, dtype)
    return x if is_float(x) else op.cast(x, torch.int64)


@lowers("prims.prod.default", renamed=_PRIM)
@lowers("aten.prod.default", "aten.prod.dim_int")
def prod(
    op: OpBuilder,
    self: Value,
    dim: Axes = None,
    *,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Value:
    """Product over axes, in ``dtype`` if given."""
    if dtype == torch.bool:
        return _truth(op, self, dim, keepdim=keepdim, **_ALL)
    factors = _addends(op, self, dtype)
    # A product of booleans is 0 or 1, which ReduceProd computes exactly.
    if is_integer(factors) and not is_bool(self) and rank_of(self) and 0 not in dims_of(self):
        return exact_product(op, factors, dim, keepdim=keepdim)
    return reduced(op, "ReduceProd", factors, dim, keepdim=keepdim)


# ---------------------------------------------------------------------- means
@lowers("aten.mean.default", "aten.mean.dim")
def mean(
    op: OpBuilder,
    self: Value,
    dim: Axes = None,
    *,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Value:
    """Sum over axes divided by the number of elements; NaN if there are none."""
    x = self if dtype is None else op.cast(self, dtype)
    if reduced_count(x, dim) == 0:  # onnxruntime's ReduceMean gives 0
        return op.Div(reduced(op, "ReduceSum", x, dim, keepdim=keepdim), op.like(x, 0))
    return reduced(op, "ReduceMean", x, dim, keepdim=keepdim)


@lowers("aten.nanmean.default")
def nanmean(
    op: OpBuilder,
    self: Value,
    dim: Axes = None,
    *,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Value:
    """Mean of the elements that are not NaN."""
    (x,) = widen(op, self if dtype is None else op.cast(self, dtype))
    there = op.cast(op.Not(op.IsNaN(x)), dtype_of(x))
    count = reduced(op, "ReduceSum", there, dim, keepdim=keepdim)
    total = reduced(op, "ReduceSum", _without_nan(op, x), dim, keepdim=keepdim)
    return op.Div(total, count)


def _without_nan(op: OpBuilder, x: Value) -> Value:
    return op.Where(op.IsNaN(x), 0.0, x) if is_float(x) else x


# ---------------------------------------------------------------------- truth
_ANY: dict[str, Any] = {"extreme": "ReduceMax", "count": "ReduceSum"}
_ALL: dict[str, Any] = {"extreme": "ReduceMin", "count": "ReduceProd"}


@lowers("aten.any.default", "aten.any.dim", "aten.any.dims", "aten._is_any_true.default", **_ANY)
@lowers("aten.all.default", "aten.all.dim", "aten.all.dims", "aten._is_all_true.default", **_ALL)
def truth(
    op: OpBuilder,
    self: Value,
    dim: Axes = None,
    *,
    keepdim: bool = False,
    extreme: str,
    count: str,
) -> Value:
    """Whether any or every element over axes is not zero; over no axes, whether each is."""
    if dim is not None and not isinstance(dim, int) and len(dim) == 0:
        return op.cast(self, torch.bool)
    return _truth(op, self, dim, keepdim=keepdim, extreme=extreme, count=count)


def _truth(
    op: OpBuilder, x: Value, axes: Axes, *, keepdim: bool, extreme: str, count: str
) -> Value:
    """Reduce truth values: as booleans, or as counts for empty tensors, for which that fails."""
    true = op.cast(x, torch.bool)
    if op.opset >= 20 and is_static(dims_of(x)) and numel(dims_of(x)) != 0:
        return reduced(op, extreme, true, axes, keepdim=keepdim)
    return op.cast(
        reduced(op, count, op.cast(true, torch.int64), axes, keepdim=keepdim), torch.bool
    )


@lowers("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def count_nonzero(op: OpBuilder, self: Value, dim: Axes = None) -> Value:
    """The number of nonzero elements over axes."""
    ones = op.cast(op.cast(self, torch.bool), torch.int64)
    return reduced(op, "ReduceSum", set_dims(ones, dims_of(self)), dim, keepdim=False)
