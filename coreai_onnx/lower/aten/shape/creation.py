"""Tensors created from numbers: constants, ranges, identity matrices, triangles.

Small tensors that are known at conversion are computed by torch itself and stored; larger or
symbolic tensors are computed in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import onnx_ir as ir
import sympy
import torch

from coreai_onnx.lower.aten.shape.indices import LARGEST_CONSTANT
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import (
    Dim,
    Number,
    Value,
    dims_of,
    dtype_of,
    is_static,
    numel,
    real_part,
    scalar_dtype,
    set_dims,
)
from coreai_onnx.lower.walk.registry import F, Lowering, lowers

Scalar: TypeAlias = Number | sympy.Expr


# ---------------------------------------------------------------------- one value
def filled(op: OpBuilder, size: Sequence[Dim], value: Any, dtype: torch.dtype) -> Value:
    """Return a tensor filled with one value: stored if small, otherwise computed in the graph."""
    if dtype.is_complex:
        return op.expand(_pair(op, value, dtype), [*size, 2])
    if isinstance(value, sympy.Basic):
        return op.expand(op.cast(op.dim(value), dtype), size)
    if is_static(size) and int(numel(size)) <= LARGEST_CONSTANT:
        return op.const(torch.full([int(d) for d in size], value, dtype=dtype))
    if dtype == torch.bfloat16:  # ConstantOfShape has no kernel for it
        return op.cast(filled(op, size, value, torch.float32), dtype)
    one = ir.tensor(torch.full((1,), value, dtype=dtype))
    return set_dims(op.ConstantOfShape(op.shape(size), value=one), tuple(size))


def _pair(op: OpBuilder, value: Any, dtype: torch.dtype) -> Value:
    """Return the real and imaginary part of a number."""
    if isinstance(value, sympy.Basic):
        real = op.cast(op.dim(value), real_part(dtype))
        return set_dims(op.Mul(real, [1.0, 0.0]), (2,))
    return op.const(torch.view_as_real(torch.tensor(complex(value), dtype=dtype)))


def _creates(*names: str) -> Callable[[F], F]:
    """Register the lowering of ops that create tensors of real or of complex numbers."""

    def register(function: F) -> F:
        return lowers(*names, complex=True)(lowers(*names)(function))

    return register


@_creates("aten.full.default")
def full(
    op: OpBuilder, size: Sequence[Dim], fill_value: Scalar, *, dtype: torch.dtype | None = None
) -> Value:
    """A tensor filled with a value, by default in the value's dtype."""
    return filled(op, size, fill_value, dtype or scalar_dtype(fill_value))


@_creates("prims.full.default")
def prims_full(
    op: OpBuilder, shape: Sequence[Dim], fill_value: Scalar, *, dtype: torch.dtype
) -> Value:
    """A tensor filled with a value."""
    return filled(op, shape, fill_value, dtype)


@_creates("aten.full_like.default")
def full_like(
    op: OpBuilder, self: Value, fill_value: Scalar, *, dtype: torch.dtype | None = None
) -> Value:
    """A tensor filled with a value, with the sizes of self."""
    return filled(op, dims_of(self), fill_value, dtype or dtype_of(self))


@_creates("prims.full_like.default")
def prims_full_like(op: OpBuilder, a: Value, fill_value: Scalar, *, dtype: torch.dtype) -> Value:
    """A tensor filled with a value, with the sizes of a."""
    return filled(op, dims_of(a), fill_value, dtype)


@_creates("aten.new_full.default")
def new_full(
    op: OpBuilder,
    self: Value,
    size: Sequence[Dim],
    fill_value: Scalar,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    """A tensor filled with a value, with the dtype of self."""
    return filled(op, size, fill_value, dtype or dtype_of(self))


@_creates("aten.fill.Scalar", "prims.fill.default")
def fill(op: OpBuilder, self: Value, value: Scalar) -> Value:
    """A tensor filled with a value, with the sizes and dtype of self."""
    return filled(op, dims_of(self), value, dtype_of(self))


@lowers("aten.fill.Tensor")
def fill_tensor(op: OpBuilder, self: Value, value: Value) -> Value:
    """A 0-d tensor broadcast to the sizes and dtype of self."""
    return op.expand(op.cast(value, dtype_of(self)), dims_of(self))


@lowers("aten.copy.default", "aten.copy_.default")  # matrix_power decomposes to copy_
def copy(op: OpBuilder, self: Value, src: Value) -> Value:
    """src broadcast to the sizes and dtype of self."""
    return fill_tensor(op, self, src)


@_creates("aten.zero.default")
def zero(op: OpBuilder, self: Value) -> Value:
    """Zeros with the sizes and dtype of self."""
    return filled(op, dims_of(self), 0, dtype_of(self))


# In torch the content of "empty" is undefined; zeros make a program reproducible.
_SIZED = {
    "zeros.default": 0,
    "ones.default": 1,
    "_efficientzerotensor.default": 0,  # the zeros of forward-mode derivatives
    "empty.memory_format": 0,
    "empty_permuted.default": 0,
    "empty_strided.default": 0,
}
_LIKE = {"zeros_like.default": 0, "ones_like.default": 1, "empty_like.default": 0}
_NEW = {
    "new_zeros.default": 0,
    "new_ones.default": 1,
    "new_empty.default": 0,
    "new_empty_strided.default": 0,
}


def _sized(number: int) -> Lowering:
    def lower(op: OpBuilder, size: Sequence[Dim], *, dtype: torch.dtype | None = None) -> Value:
        return filled(op, size, number, dtype or torch.get_default_dtype())

    return lower


def _like(number: int) -> Lowering:
    def lower(op: OpBuilder, self: Value, *, dtype: torch.dtype | None = None) -> Value:
        return filled(op, dims_of(self), number, dtype or dtype_of(self))

    return lower


def _new(number: int) -> Lowering:
    def lower(
        op: OpBuilder, self: Value, size: Sequence[Dim], *, dtype: torch.dtype | None = None
    ) -> Value:
        return filled(op, size, number, dtype or dtype_of(self))

    return lower


for _table, _filled_by in ((_SIZED, _sized), (_LIKE, _like), (_NEW, _new)):
    for _name, _number in _table.items():
        _creates(f"aten.{_name}")(_filled_by(_number))


@_creates("prims.empty.default", "prims.empty_permuted.default", "prims.empty_strided.default")
def prims_empty(op: OpBuilder, shape: Sequence[Dim], *, dtype: torch.dtype) -> Value:
    """Zeros."""
    return filled(op, shape, 0, dtype)


# ---------------------------------------------------------------------- one number
@_creates("aten.scalar_tensor.default")
def scalar_tensor(op: OpBuilder, s: Scalar, *, dtype: torch.dtype | None = None) -> Value:
    """A number as a 0-d tensor."""
    default = torch.promote_types(torch.get_default_dtype(), scalar_dtype(s))
    return filled(op, [], s, dtype or default)


@_creates("prims.scalar_tensor.default")
def prims_scalar_tensor(op: OpBuilder, s: Scalar, *, dtype: torch.dtype | None = None) -> Value:
    """A number as a 0-d tensor."""
    return filled(op, [], s, dtype or torch.get_default_dtype())
