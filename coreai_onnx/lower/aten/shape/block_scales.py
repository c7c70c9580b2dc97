"""Ops of ``torchao`` for values in float8, with a scale per tensor, row or block."""

from __future__ import annotations

import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Dim, Value, dims_of
from coreai_onnx.lower.walk.registry import lowers


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
