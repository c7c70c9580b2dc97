"""Quantization of activations: ``coreai::quantize`` and torchao's float8, with scales per block."""

from __future__ import annotations

import torch

from coreai_onnx.composites.activation_modules import limits, stored
from coreai_onnx.lower.aten.pointwise.quantization import (
    dequantize_per_channel,
    dequantize_per_tensor,
    quantize_per_channel,
    quantize_per_tensor,
)
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Dim, Value, dims_of, dtype_of
from coreai_onnx.lower.walk.registry import lowers


@lowers("coreai.quantize.default")
def quantize(
    op: OpBuilder,
    input: Value,
    scale: Value,
    output_dtype: torch.dtype,
    zero_point: Value | None = None,
    minval: Value | None = None,
    axis: int = 0,
) -> Value:
    """round(input / scale) + zero_point, or round((input - minval) / scale) + qmin, clamped."""
    values = op.cast(input, torch.float32)
    if output_dtype.is_floating_point:
        # torch casts larger numbers to NaN or infinity; the reference clamps them first.
        largest = torch.finfo(output_dtype).max
        scaled = op.Div(values, _along(op, scale, axis, input))
        return op.cast(
            op.Clip(scaled, op.like(scaled, -largest), op.like(scaled, largest)), output_dtype
        )
    low, high = limits(output_dtype)
    last = (low, high, stored(output_dtype))
    if minval is not None:
        moved = op.Sub(values, _along(op, minval, axis, input))
        steps = op.Round(op.Div(moved, _along(op, scale, axis, input)))
        kept = op.Clip(op.Add(steps, float(low)), float(low), float(high))
        return op.cast(kept, stored(output_dtype))
    if _is_one(scale):
        return quantize_per_tensor(
            op, values, scale, 0 if zero_point is None else zero_point, *last
        )
    # QuantizeLinear takes the dtype of its result from the zero points.
    zeros = op.cast(op.Mul(scale, op.like(scale, 0)), last[2]) if zero_point is None else zero_point
    return quantize_per_channel(op, values, scale, zeros, axis % len(dims_of(input)), *last)


@lowers("coreai.dequantize.default")
def dequantize(
    op: OpBuilder,
    input: Value,
    scale: Value,
    zero_point: Value | None = None,
    minval: Value | None = None,
    axis: int = 0,
    input_dtype: torch.dtype | None = None,
    output_dtype: torch.dtype | None = None,
) -> Value:
    """(input - zero_point) * scale, or (input - qmin) * scale + minval."""
    target, dtype = output_dtype or dtype_of(scale), dtype_of(input)
    if dtype.is_floating_point or minval is not None:
        values = op.cast(input, torch.float32)
        if minval is not None:
            values = op.Sub(values, float(limits(input_dtype or dtype)[0]))
        values = op.Mul(values, _along(op, scale, axis, input))
        if minval is not None:
            values = op.Add(values, _along(op, minval, axis, input))
        return op.cast(values, target)
    if _is_one(scale):
        zero = 0 if zero_point is None else zero_point
        return op.cast(dequantize_per_tensor(op, input, scale, zero, dtype), target)
    place = axis % len(dims_of(input))
    return op.cast(dequantize_per_channel(op, input, scale, zero_point, place, dtype), target)


def _is_one(scale: Value) -> bool:
    """Whether a scale is one number."""
    return all(dim == 1 for dim in dims_of(scale))


def _along(op: OpBuilder, x: Value, axis: int, like: Value) -> Value:
    """Return one number, or a vector along an axis of another tensor, in float32."""
    x = op.cast(x, torch.float32)
    if _is_one(x):
        return op.reshape(x, [])
    rank = len(dims_of(like))
    place = axis % rank
    return op.reshape(x, [dims_of(x)[0] if i == place else 1 for i in range(rank)])


# ---------------------------------------------------------------------- float8 of torchao
@lowers("torchao.quantize_affine_float8_non_decomposed.default")
def quantize_float8(
    op: OpBuilder, tensor: Value, scale: Value, float8_dtype: torch.dtype = torch.float8_e4m3fn
) -> Value:
    """Tensor / scale, clamped to the range of float8; a scale per block."""
    largest = torch.finfo(float8_dtype).max
    scaled = op.Div(*_in_blocks(op, tensor, scale))
    kept = op.Clip(scaled, op.like(scaled, -largest), op.like(scaled, largest))
    return op.reshape(op.cast(kept, float8_dtype), dims_of(tensor))


@lowers("torchao.dequantize_affine_float8_non_decomposed.default")
def dequantize_float8(
    op: OpBuilder, tensor: Value, scale: Value, output_dtype: torch.dtype = torch.float32
) -> Value:
    """Tensor * scale; a scale per block."""
    values = op.Mul(*_in_blocks(op, tensor, scale))
    return op.reshape(op.cast(values, output_dtype), dims_of(tensor))


def _in_blocks(op: OpBuilder, tensor: Value, scale: Value) -> tuple[Value, Value]:
    """Return both in float32, with an axis for the blocks and one inside of them where needed."""
    values, scale = op.cast(tensor, torch.float32), op.cast(scale, torch.float32)
    dims, blocks = dims_of(tensor), dims_of(scale)
    # Scales per tensor or per row broadcast as they are.
    if all(size in {1, dim} for size, dim in zip(reversed(blocks), reversed(dims), strict=False)):
        return values, scale
    whole: list[Dim] = []
    parts: list[Dim] = []
    for dim, count in zip(dims, blocks, strict=True):
        whole += [count, dim // count]
        parts += [count, 1]
    return op.reshape(values, whole), op.reshape(scale, parts)
