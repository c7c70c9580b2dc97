"""Conversions between dtypes, and ops that only copy or rename a tensor."""

from __future__ import annotations

import torch

from coreai_onnx.errors import LoweringError
from coreai_onnx.lower.aten.pointwise.float_bits import LAYOUTS, bits_of, from_bits
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value, dtype_of, ir_dtype, is_float
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


@lowers("prims.view_of.default", "prims.device_put.default", renamed={"self": "a"})
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
    "aten._conj.default",
    "aten._conj_physical.default",
    "aten._neg_view.default",
    "aten.conj.default",
    "aten.conj_physical.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "prims.clone.default",
)
def same(_op: OpBuilder, self: Value) -> Value:
    """The tensor itself: values do not change, ONNX has no strides, and self is real."""
    return self


@lowers("prims.convert_element_type.default", renamed={"self": "a"})
@lowers("aten._to_copy.default", "aten.to.dtype_layout", "aten.to.dtype", "aten.to.device")
def to_copy(op: OpBuilder, self: Value, dtype: torch.dtype | None = None) -> Value:
    """The tensor in another dtype; layout, device and memory format are ignored."""
    return self if dtype is None else converted(op, self, dtype)


@lowers("aten.to.other", "aten.type_as.default")
def type_as(op: OpBuilder, self: Value, other: Value) -> Value:
    """The tensor in the dtype of another one."""
    return converted(op, self, dtype_of(other))


@lowers("prims.view_of_dtype.default", renamed={"self": "a"})
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
        # BitCast exists from opset 26 on; before, bits are computed.
        if op.opset >= 26:
            return op.BitCast(self, to=int(ir_dtype(dtype)))
        if {one for one in (source, dtype) if one.is_floating_point} <= LAYOUTS.keys():
            integers = bits_of(op, self) if source.is_floating_point else self
            return (
                from_bits(op, integers, dtype)
                if dtype.is_floating_point
                else op.cast(integers, dtype)
            )
        # float8: the bits of weights are known, and those of other values are not computed.
        if self.const_value is not None:
            data = torch.from_numpy(self.const_value.numpy().view("uint8").copy())
            return op.const(data.view(dtype))
    raise LoweringError(
        f"view({dtype}) of {source}: ONNX has no op for it",
        op.scope.where,
        "compute the value instead of reinterpreting its bits",
    )
