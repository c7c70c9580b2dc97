"""Tensors created from numbers: constants, ranges, identity matrices, triangles.

Small tensors that are known at conversion are computed by torch itself and stored; larger or
symbolic tensors are computed in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import sympy
import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.tensors import filled
from coreai_onnx.lower.nodes.values import (
    Dim,
    Number,
    Value,
    dims_of,
    dtype_of,
    scalar_dtype,
)
from coreai_onnx.lower.walk.registry import F, lowers

Scalar: TypeAlias = Number | sympy.Expr


# ---------------------------------------------------------------------- one value
def _creates(*names: str, **options: Any) -> Callable[[F], F]:
    """Register the lowering of ops that create tensors of real or of complex numbers."""

    def register(function: F) -> F:
        return lowers(*names, complex=True, **options)(lowers(*names, **options)(function))

    return register


@_creates("prims.full.default", renamed={"size": "shape"})
@_creates("aten.full.default")
def full(
    op: OpBuilder, size: Sequence[Dim], fill_value: Scalar, *, dtype: torch.dtype | None = None
) -> Value:
    """A tensor filled with a value, by default in the value's dtype."""
    return filled(op, size, fill_value, dtype or scalar_dtype(fill_value))


# In torch the content of "empty" is undefined; zeros make a program reproducible.
@_creates("aten.zeros.default", "aten.empty.memory_format", "aten.empty_permuted.default")
@_creates("aten.empty_strided.default")
@_creates("aten._efficientzerotensor.default")  # the zeros of forward-mode derivatives
@_creates("aten.ones.default", number=1)
@_creates("prims.empty.default", "prims.empty_permuted.default", renamed={"size": "shape"})
@_creates("prims.empty_strided.default", renamed={"size": "shape"})
def zeros(
    op: OpBuilder, size: Sequence[Dim], *, dtype: torch.dtype | None = None, number: int = 0
) -> Value:
    """Zeros or ones, by default in torch's default dtype."""
    return filled(op, size, number, dtype or torch.get_default_dtype())


@_creates("prims.full_like.default", renamed={"self": "a"})
@_creates("prims.fill.default", "aten.fill.Scalar", renamed={"fill_value": "value"})
@_creates("aten.full_like.default", "aten.new_full.default")
@_creates("aten.zeros_like.default", "aten.new_zeros.default", "aten.zero.default", fill_value=0)
@_creates("aten.ones_like.default", "aten.new_ones.default", fill_value=1)
@_creates("aten.empty_like.default", "aten.new_empty.default", fill_value=0)
@_creates("aten.new_empty_strided.default", fill_value=0)
def full_like(
    op: OpBuilder,
    self: Value,
    size: Sequence[Dim] | None = None,
    *,
    fill_value: Scalar,
    dtype: torch.dtype | None = None,
) -> Value:
    """A tensor filled with a value, by default with the sizes and dtype of self."""
    sizes = dims_of(self) if size is None else size
    return filled(op, sizes, fill_value, dtype or dtype_of(self))


@lowers("aten.fill.Tensor", renamed={"src": "value"})
@lowers("aten.copy.default", "aten.copy_.default")  # matrix_power decomposes to copy_
def copy(op: OpBuilder, self: Value, src: Value) -> Value:
    """src broadcast to the sizes and dtype of self."""
    return op.expand(op.cast(src, dtype_of(self)), dims_of(self))


# ---------------------------------------------------------------------- one number
@_creates("aten.scalar_tensor.default", "prims.scalar_tensor.default")
def scalar_tensor(op: OpBuilder, s: Scalar, *, dtype: torch.dtype | None = None) -> Value:
    """A number as a 0-d tensor."""
    default = torch.promote_types(torch.get_default_dtype(), scalar_dtype(s))
    return filled(op, [], s, dtype or default)
