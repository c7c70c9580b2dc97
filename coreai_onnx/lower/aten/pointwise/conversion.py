"""Conversions between dtypes, and ops that only copy or rename a tensor."""

from __future__ import annotations

from typing import Any

import torch

from coreai_onnx.errors import LoweringError
from coreai_onnx.lower.aten.pointwise.float_bits import bits_of, from_bits
from coreai_onnx.lower.build.builder import OpBuilder
from coreai_onnx.lower.build.values import Value, dtype_of, ir_dtype, is_float
from coreai_onnx.lower.walk.registry import lowers


def converted(op: OpBuilder, x: Value, dtype: torch.dtype) -> Value:
    """Return ``x`` converted to another dtype by torch's rules.

    Floating-point numbers are truncated to integers; the conversion to an unsigned dtype goes
    through int64, so that negative numbers wrap around.
    """
    unsigned = (torch.uint8, torch.uint16, torch.uint32)
    if is_float(x) and dtype in unsigned:
        x = op.cast(x, torch.int64)
    return op.cast(x, dtype)


@lowers(
    "aten.alias.default",
    "aten.alias_copy.default",
    "aten.detach.default",
    "aten.detach_.default",
    "aten.detach_copy.default",
    "aten.lift.default",
    "aten.lift_fresh.default",
    "aten.lift_fresh_copy.default",
    "aten.positive.default",
    "aten.resolve_conj.default",
    "aten.resolve_neg.default",
)
def same(op: OpBuilder, self: Value) -> Value:
    """The tensor itself."""
    del op
    return self


@lowers("prims.view_of.default")
def prims_view_of(op: OpBuilder, a: Value) -> Value:
    """The tensor itself."""
    return same(op, a)


@lowers("prims.device_put.default")
def prims_device_put(op: OpBuilder, a: Value, device: Any, non_blocking: bool = False) -> Value:
    """The tensor itself; the runtime chooses the device."""
    del device, non_blocking
    return same(op, a)


@lowers("aten.clone.default", "prims.clone.default", "aten.contiguous.default")
def clone(op: OpBuilder, self: Value, *, memory_format: Any = None) -> Value:
    """The tensor itself: values do not change, and ONNX has no strides."""
    del memory_format
    return same(op, self)


@lowers("aten._to_copy.default")
def to_copy(
    op: OpBuilder,
    self: Value,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Value:
    """The tensor in another dtype; layout, device and memory format are ignored."""
    del layout, device, pin_memory, non_blocking, memory_format
    return self if dtype is None else converted(op, self, dtype)


@lowers("aten.to.dtype_layout")
def to_dtype_layout(
    op: OpBuilder,
    self: Value,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: Any = None,
) -> Value:
    """The tensor in another dtype."""
    del layout, device, pin_memory, non_blocking, copy, memory_format
    return self if dtype is None else converted(op, self, dtype)


@lowers("aten.to.dtype")
def to_dtype(
    op: OpBuilder,
    self: Value,
    dtype: torch.dtype,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: Any = None,
) -> Value:
    """The tensor in another dtype."""
    del non_blocking, copy, memory_format
    return converted(op, self, dtype)


@lowers("aten.to.device")
def to_device(
    op: OpBuilder,
    self: Value,
    device: Any,
    dtype: torch.dtype,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: Any = None,
) -> Value:
    """The tensor in another dtype; the device is ignored."""
    del device, non_blocking, copy, memory_format
    return converted(op, self, dtype)


@lowers("aten.to.other")
def to_other(
    op: OpBuilder,
    self: Value,
    other: Value,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: Any = None,
) -> Value:
    """The tensor in the dtype of another one."""
    del non_blocking, copy, memory_format
    return converted(op, self, dtype_of(other))


@lowers("aten.type_as.default")
def type_as(op: OpBuilder, self: Value, other: Value) -> Value:
    """The tensor in the dtype of another one."""
    return converted(op, self, dtype_of(other))


@lowers("prims.convert_element_type.default")
def prims_convert_element_type(op: OpBuilder, a: Value, dtype: torch.dtype) -> Value:
    """The tensor in another dtype."""
    return converted(op, a, dtype)


@lowers("aten.view.dtype", "aten.view_copy.dtype")
def view_dtype(op: OpBuilder, self: Value, dtype: torch.dtype) -> Value:
    """The bits of the tensor read as another dtype of the same width.

    Raises:
        LoweringError: If the dtypes differ in width.
    """
    source = dtype_of(self)
    floating = source.is_floating_point or dtype.is_floating_point
    if source == dtype or (source.itemsize == dtype.itemsize and not floating):
        return op.cast(self, dtype)
    if source.itemsize == dtype.itemsize and torch.bool not in (source, dtype):
        if op.opset >= 26:
            return op.BitCast(self, to=int(ir_dtype(dtype)))
        integers = bits_of(op, self) if source.is_floating_point else self
        return (
            from_bits(op, integers, dtype) if dtype.is_floating_point else op.cast(integers, dtype)
        )
    raise LoweringError(
        f"view({dtype}) of {source}: ONNX has no op for it",
        op.scope.where,
        "compute the value instead of reinterpreting its bits",
    )


@lowers("prims.view_of_dtype.default")
def prims_view_of_dtype(op: OpBuilder, a: Value, dtype: torch.dtype) -> Value:
    """The bits of the tensor read as another dtype."""
    return view_dtype(op, a, dtype)
