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
from coreai_onnx.lower.build.builder import OpBuilder
from coreai_onnx.lower.build.values import (
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
from coreai_onnx.lower.walk.registry import F, lowers

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
    op: OpBuilder,
    size: Sequence[Dim],
    fill_value: Scalar,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Value:
    """A tensor filled with a value, by default in the value's dtype."""
    return filled(op, size, fill_value, dtype or scalar_dtype(fill_value))


@_creates("prims.full.default")
def prims_full(
    op: OpBuilder,
    shape: Sequence[Dim],
    fill_value: Scalar,
    *,
    dtype: torch.dtype,
    device: Any,
    requires_grad: bool,
) -> Value:
    """A tensor filled with a value."""
    return filled(op, shape, fill_value, dtype)


@_creates("aten.full_like.default")
def full_like(
    op: OpBuilder,
    self: Value,
    fill_value: Scalar,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Value:
    """A tensor filled with a value, with the sizes of self."""
    return filled(op, dims_of(self), fill_value, dtype or dtype_of(self))


@_creates("prims.full_like.default")
def prims_full_like(
    op: OpBuilder,
    a: Value,
    fill_value: Scalar,
    *,
    dtype: torch.dtype,
    device: Any,
    requires_grad: bool,
) -> Value:
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
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
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


@lowers("aten.copy.default")
def copy(op: OpBuilder, self: Value, src: Value, non_blocking: bool = False) -> Value:
    """src broadcast to the sizes and dtype of self."""
    return fill_tensor(op, self, src)


@_creates("aten.zero.default")
def zero(op: OpBuilder, self: Value) -> Value:
    """Zeros with the sizes and dtype of self."""
    return filled(op, dims_of(self), 0, dtype_of(self))


def _register_sized(name: str, value: int) -> None:
    """Register ``aten.<name>``, which takes sizes."""

    @_creates(f"aten.{name}")
    def lowering(
        op: OpBuilder,
        size: Sequence[Dim],
        *,
        dtype: torch.dtype | None = None,
        layout: Any = None,
        device: Any = None,
        pin_memory: Any = None,
    ) -> Value:
        """A tensor filled with a value."""
        return filled(op, size, value, dtype or torch.get_default_dtype())


def _register_like(name: str, value: int) -> None:
    """Register ``aten.<name>``, which takes sizes and dtype from a tensor."""

    @_creates(f"aten.{name}")
    def lowering(
        op: OpBuilder,
        self: Value,
        *,
        dtype: torch.dtype | None = None,
        layout: Any = None,
        device: Any = None,
        pin_memory: Any = None,
        memory_format: Any = None,
    ) -> Value:
        """A tensor filled with a value, with the sizes of self."""
        return filled(op, dims_of(self), value, dtype or dtype_of(self))


def _register_new(name: str, value: int) -> None:
    """Register ``aten.<name>``, which takes sizes and a tensor for the dtype."""

    @_creates(f"aten.{name}")
    def lowering(
        op: OpBuilder,
        self: Value,
        size: Sequence[Dim],
        *,
        dtype: torch.dtype | None = None,
        layout: Any = None,
        device: Any = None,
        pin_memory: Any = None,
    ) -> Value:
        """A tensor filled with a value, with the dtype of self."""
        return filled(op, size, value, dtype or dtype_of(self))


# In torch the content of "empty" is undefined; zeros make a program reproducible.
for _suffix, _number in (("zeros", 0), ("ones", 1)):
    _register_sized(f"{_suffix}.default", _number)
    _register_like(f"{_suffix}_like.default", _number)
    _register_new(f"new_{_suffix}.default", _number)
_register_sized("_efficientzerotensor.default", 0)  # the zeros of forward-mode derivatives
_register_like("empty_like.default", 0)
_register_new("new_empty.default", 0)


@_creates("aten.empty.memory_format")
def empty(
    op: OpBuilder,
    size: Sequence[Dim],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> Value:
    """Zeros."""
    return filled(op, size, 0, dtype or torch.get_default_dtype())


@_creates("aten.empty_permuted.default")
def empty_permuted(
    op: OpBuilder,
    size: Sequence[Dim],
    physical_layout: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Value:
    """Zeros."""
    return filled(op, size, 0, dtype or torch.get_default_dtype())


@_creates("aten.empty_strided.default")
def empty_strided(
    op: OpBuilder,
    size: Sequence[Dim],
    stride: Sequence[Dim],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Value:
    """Zeros."""
    return filled(op, size, 0, dtype or torch.get_default_dtype())


@_creates("aten.new_empty_strided.default")
def new_empty_strided(
    op: OpBuilder,
    self: Value,
    size: Sequence[Dim],
    stride: Sequence[Dim],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Value:
    """Zeros, with the dtype of self."""
    return filled(op, size, 0, dtype or dtype_of(self))


@_creates("prims.empty.default")
def prims_empty(
    op: OpBuilder, shape: Sequence[Dim], *, dtype: torch.dtype, device: Any, requires_grad: bool
) -> Value:
    """Zeros."""
    return filled(op, shape, 0, dtype)


@_creates("prims.empty_permuted.default")
def prims_empty_permuted(
    op: OpBuilder,
    shape: Sequence[Dim],
    physical_layout: Sequence[int],
    *,
    dtype: torch.dtype,
    device: Any,
    requires_grad: bool,
) -> Value:
    """Zeros."""
    return filled(op, shape, 0, dtype)


@_creates("prims.empty_strided.default")
def prims_empty_strided(
    op: OpBuilder,
    shape: Sequence[Dim],
    strides: Sequence[Dim],
    *,
    dtype: torch.dtype,
    device: Any,
    requires_grad: bool,
) -> Value:
    """Zeros."""
    return filled(op, shape, 0, dtype)


# ---------------------------------------------------------------------- one number
@_creates("aten.scalar_tensor.default")
def scalar_tensor(
    op: OpBuilder,
    s: Scalar,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
) -> Value:
    """A number as a 0-d tensor."""
    default = torch.promote_types(torch.get_default_dtype(), scalar_dtype(s))
    return filled(op, [], s, dtype or default)


@_creates("prims.scalar_tensor.default")
def prims_scalar_tensor(
    op: OpBuilder, s: Scalar, *, dtype: torch.dtype | None = None, device: Any = None
) -> Value:
    """A number as a 0-d tensor."""
    return filled(op, [], s, dtype or torch.get_default_dtype())
