"""Greatest and least elements and their indices; NaN is both greater and less than all others."""

from __future__ import annotations

import onnx_ir as ir
import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.tensors import Axes, flat, reduced
from coreai_onnx.lower.nodes.values import (
    Value,
    dims_of,
    dtype_of,
    is_float,
    rank_of,
    set_dims,
    wrap,
)
from coreai_onnx.lower.walk.registry import lowers

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}


def order_key(op: OpBuilder, x: Value, *, nan_last: bool = True) -> Value:
    """Return values that sort as torch sorts ``x``: NaN beyond +inf (or before -inf).

    onnxruntime compares with ``<``, which is not an order if there is a NaN. The key has a wider
    dtype, in which infinity is mapped to a large finite number and NaN to infinity. float64 has no
    wider dtype: there the largest number and infinity become equal.
    """
    if not is_float(x):
        return x
    dtype = dtype_of(x)
    wide = op.cast(x, _WIDER.get(dtype, dtype))
    largest = torch.finfo(dtype).max * (2.0 if dtype in _WIDER else 1.0)
    if nan_last:
        key = op.Where(op.IsNaN(x), float("inf"), op.Min(wide, largest))
    else:
        key = op.Where(op.IsNaN(x), -float("inf"), op.Max(wide, -largest))
    return set_dims(key, dims_of(x))


@lowers("prims.amax.default", renamed={"self": "inp", "dim": "dims"}, largest=True)
@lowers("prims.amin.default", renamed={"self": "inp", "dim": "dims"}, largest=False)
@lowers("aten.amax.default", "aten.max.default", largest=True)
@lowers("aten.amin.default", "aten.min.default", largest=False)
def extreme(
    op: OpBuilder, self: Value, dim: Axes = None, *, largest: bool, keepdim: bool = False
) -> Value:
    """The greatest or least element over axes, NaN if there is one.

    onnxruntime's ReduceMax and ReduceMin may ignore a NaN, depending on its position in the row.
    """
    values = reduced(op, "ReduceMax" if largest else "ReduceMin", self, dim, keepdim=keepdim)
    if not is_float(self) or rank_of(self) == 0:
        return values
    has_nan = reduced(op, "ReduceMax", op.IsNaN(self), dim, keepdim=keepdim)
    return op.Where(has_nan, float("nan"), values)


@lowers("aten.argmax.default", largest=True)
@lowers("aten.argmin.default", largest=False)
def extreme_index(
    op: OpBuilder, self: Value, dim: int | None = None, *, largest: bool, keepdim: bool = False
) -> Value:
    """The index of the first greatest or least element, of the first NaN if there is one."""
    rank = rank_of(self)
    if rank == 0:
        return op.const(0)
    # Without an axis, torch counts through the flattened tensor.
    x, first = (flat(op, self), 0) if dim is None else (self, wrap(dim, rank))
    keepdims = int(keepdim and dim is not None)
    if dtype_of(x) in (torch.float32, torch.float64):
        # Their key would be float64, which GPUs do not have. Whether ReduceMax ignores a NaN does
        # not matter here: a NaN comes first.
        best = reduced(op, "ReduceMax" if largest else "ReduceMin", x, [first], keepdim=True)
        is_best = op.Cast(op.Equal(x, best), to=ir.DataType.FLOAT)
        score = op.Where(op.IsNaN(x), op.const(2.0), is_best)
        where = op.ArgMax(score, axis=first, keepdims=keepdims)
    else:
        key = order_key(op, x, nan_last=largest)
        where = op.node("ArgMax" if largest else "ArgMin", key, axis=first, keepdims=keepdims)
    return op.reshape(where, [1] * rank) if keepdim and dim is None else where


@lowers("aten.max.dim", largest=True)
@lowers("aten.min.dim", largest=False)
def extreme_with_index(
    op: OpBuilder, self: Value, dim: int, *, largest: bool, keepdim: bool = False
) -> tuple[Value, Value]:
    """Greatest or least element along an axis, and its first index."""
    value = extreme(op, self, dim, largest=largest, keepdim=keepdim)
    return value, extreme_index(op, self, dim, largest=largest, keepdim=keepdim)


@lowers("aten.aminmax.default")
def aminmax(
    op: OpBuilder, self: Value, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    """Least and greatest element along an axis."""
    least = extreme(op, self, dim, largest=False, keepdim=keepdim)
    return least, extreme(op, self, dim, largest=True, keepdim=keepdim)
