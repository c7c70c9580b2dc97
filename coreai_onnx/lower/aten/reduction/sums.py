"""Sums, products, means and truth over axes.

torch sums integers and booleans in int64; an axis list that is empty or absent means all axes.
"""

from __future__ import annotations

from typing import Any

import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.loops import final_state
from coreai_onnx.lower.nodes.numerics import widen
from coreai_onnx.lower.nodes.tensors import Axes, reduced, reduced_count
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
    x = accumulated(op, self, dtype)
    if dtype_of(x) == dtype_of(self) == torch.int64 and 0 not in dims_of(x):
        return exact_sum(op, x, dim, keepdim=keepdim)
    return reduced(op, "ReduceSum", x, dim, keepdim=keepdim)


def accumulated(op: OpBuilder, x: Value, dtype: torch.dtype | None) -> Value:
    """Return ``x`` in torch's accumulation dtype: int64 (with wraparound) for integers."""
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
    factors = accumulated(op, self, dtype)
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
    # CUDA multiplies int32 only; a sum of ones may exceed it.
    counted = torch.int32 if count == "ReduceProd" else torch.int64
    return op.cast(reduced(op, count, op.cast(true, counted), axes, keepdim=keepdim), torch.bool)


@lowers("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList")
def count_nonzero(op: OpBuilder, self: Value, dim: Axes = None) -> Value:
    """The number of nonzero elements over axes."""
    ones = op.cast(op.cast(self, torch.bool), torch.int64)
    return reduced(op, "ReduceSum", set_dims(ones, dims_of(self)), dim, keepdim=False)


# ---------------------------------------------------------------------- exact int64 results
# onnxruntime's ReduceSum and ReduceProd go through float64 and saturate, so that sums beyond 2**53
# (for example hashes of tokens) are wrong. Its MatMul and Mul compute in int64 itself.
def exact_sum(op: OpBuilder, x: Value, axes: object, *, keepdim: bool) -> Value:
    """Return the sum over axes, computed as a product with a vector of ones."""
    rank = len(dims_of(x))
    if rank == 0:
        return x
    over = wrap_all(axes, rank)  # type: ignore[arg-type]  # axes as torch gives them
    rows, count = _merged_last(op, x, over)
    if isinstance(count, int):
        ones = op.const([1] * count, torch.int64)
    else:
        ones = op.expand(op.const([1]), [count])
    total = set_dims(op.MatMul(rows, ones), dims_of(rows)[:-1])
    return op.unsqueeze(total, over) if keepdim else total


def exact_product(op: OpBuilder, x: Value, axes: object, *, keepdim: bool) -> Value:
    """Return the product over axes, computed by one multiplication after another."""
    dims = dims_of(x)
    over = wrap_all(axes, len(dims))  # type: ignore[arg-type]  # axes as torch gives them
    rows, _ = _merged_last(op, x, over)
    rest = dims_of(rows)[:-1]
    ones = op.expand(op.const(1), rest)
    (product,) = final_state(
        op, [rows], len(rest), [ones], lambda o, state, row: [o.Mul(state[0], row[0])]
    )
    return op.unsqueeze(product, over) if keepdim else product


def _merged_last(op: OpBuilder, x: Value, over: list[int]) -> tuple[Value, Dim]:
    """Return ``x`` with the axes to reduce as one last axis, and its size."""
    dims = dims_of(x)
    rest = [i for i in range(len(dims)) if i not in over]
    count = numel([dims[i] for i in over])
    turned = op.transpose(x, [*rest, *over])
    return op.reshape(turned, [*(dims[i] for i in rest), count]), count
