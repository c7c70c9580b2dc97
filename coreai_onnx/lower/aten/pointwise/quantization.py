"""Ops of ``quantized_decomposed``, which torch's quantizer inserts.

In dequantizing ops, ``quant_min``, ``quant_max`` and ``dtype`` only describe the quantized input.
"""

from __future__ import annotations

import torch

from coreai_onnx.lower.builder import OpBuilder
from coreai_onnx.lower.promotion import promote
from coreai_onnx.lower.registry import lowers
from coreai_onnx.lower.values import Number, Value, dims_of

_BYTES = (torch.int8, torch.uint8)


@lowers(
    "quantized_decomposed.quantize_per_tensor.default",
    "quantized_decomposed.quantize_per_tensor.tensor",
)
def quantize_per_tensor(
    op: OpBuilder,
    input: Value,
    scale: Value | Number,
    zero_point: Value | Number,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Value:
    """round(input / scale) + zero_point, clamped to [quant_min, quant_max]."""
    if dtype not in _BYTES:
        steps = op.Round(op.Div(op.cast(input, torch.float32), _scalar(op, scale, torch.float32)))
        shifted = op.Add(steps, _scalar(op, zero_point, torch.float32))
        return op.cast(op.Clip(shifted, float(quant_min), float(quant_max)), dtype)
    values = op.cast(input, torch.float32)
    scale, zero_point = _scalar(op, scale, torch.float32), _scalar(op, zero_point, dtype)
    result = op.QuantizeLinear(values, scale, zero_point)
    info = torch.iinfo(dtype)
    if quant_min > info.min or quant_max < info.max:
        low, high = max(quant_min, info.min), min(quant_max, info.max)
        result = op.Clip(result, op.const(low, dtype), op.const(high, dtype))
    return result


@lowers(
    "quantized_decomposed.dequantize_per_tensor.default",
    "quantized_decomposed.dequantize_per_tensor.tensor",
    "quantized_decomposed.dequantize_per_tensor.tensor2",
)
def dequantize_per_tensor(
    op: OpBuilder,
    input: Value,
    scale: Value | Number,
    zero_point: Value | Number,
    quant_min: Value | int,
    quant_max: Value | int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Value:
    """(input - zero_point) * scale."""
    target = out_dtype or torch.float32
    if dtype in _BYTES and target == torch.float32:
        scale, zero_point = _scalar(op, scale, target), _scalar(op, zero_point, dtype)
        return op.DequantizeLinear(input, scale, zero_point)
    centered = op.Sub(op.cast(input, target), _scalar(op, zero_point, target))
    return op.cast(op.Mul(centered, _scalar(op, scale, target)), target)


@lowers("quantized_decomposed.dequantize_per_channel_group.default")
def dequantize_per_channel_group(
    op: OpBuilder,
    input: Value,
    scales: Value,
    zero_points: Value | None,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int,
    output_dtype: torch.dtype,
) -> Value:
    """(input - zero point) * scale, both per group of columns; [rows, columns].

    Lowered to elementary ops: onnxruntime computes these for a constant weight once, when it loads
    the model. It would run ``DequantizeLinear`` in every run, or round the other factor of a
    product to 8 bits. The target ``contrib`` keeps 4-bit weights with ``MatMulNBits``.
    """
    rows, columns = dims_of(input)
    if isinstance(columns, int) and group_size > columns and dims_of(scales)[-1] == 1:
        group_size = columns
    groups = columns // group_size
    centered = op.reshape(input, [rows, groups, group_size])
    if zero_points is not None:
        centered = op.Sub(*promote(op, centered, op.reshape(zero_points, [rows, groups, 1])))
    values = op.Mul(*promote(op, centered, op.reshape(scales, [rows, groups, 1])))
    return op.cast(op.reshape(values, [rows, columns]), output_dtype)


@lowers("quantized_decomposed.choose_qparams_per_token_asymmetric.default")
def choose_qparams_per_token_asymmetric(
    op: OpBuilder,
    input: Value,
    dtype: torch.dtype,
) -> tuple[Value, Value]:
    """The scale and zero point of each row for which 8 bits cover 0 and all elements."""
    low, high = (
        op.cast(reduce(input, [-1], keepdims=1), torch.float32)
        for reduce in (op.ReduceMin, op.ReduceMax)
    )
    low, high = op.Min(low, op.like(low, 0)), op.Max(high, op.like(high, 0))
    scale = op.Max(op.Div(op.Sub(high, low), 255.0), torch.finfo(torch.float32).eps)
    first, last = op.Div(low, scale), op.Div(high, scale)
    error = op.Add(op.Add(first, -128.0), op.Add(last, 127.0))
    zero = op.Where(op.Greater(error, 0.0), op.Sub(-128.0, first), op.Sub(127.0, last))
    zero = op.Round(op.Clip(zero, -128.0, 127.0))
    return op.cast(scale, torch.float64), op.cast(zero, torch.int64)


@lowers("quantized_decomposed.quantize_per_token.default")
def quantize_per_token(
    op: OpBuilder,
    input: Value,
    scales: Value,
    zero_points: Value,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Value:
    """round(input / scale + zero_point) per row, clamped to [quant_min, quant_max]."""
    scaled = op.Mul(*promote(op, input, op.Reciprocal(scales)))
    steps = op.Round(op.Add(*promote(op, scaled, zero_points)))
    kept = op.Clip(steps, op.like(steps, quant_min), op.like(steps, quant_max))
    return op.cast(kept, dtype)


@lowers("quantized_decomposed.dequantize_per_token.default")
def dequantize_per_token(
    op: OpBuilder,
    input: Value,
    scales: Value,
    zero_points: Value,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype,
) -> Value:
    """(input - zero_point) * scale, per row."""
    centered = op.Sub(*promote(op, input, zero_points))
    return op.cast(op.Mul(*promote(op, centered, scales)), output_dtype)


def _scalar(op: OpBuilder, x: Value | Number, dtype: torch.dtype) -> Value:
    """Return a number, or a tensor of one element, as a 0-d value."""
    if isinstance(x, int | float):
        return op.const(x, dtype)
    return op.cast(op.reshape(x, []) if dims_of(x) else x, dtype)
