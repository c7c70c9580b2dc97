"""Ops of ``quantized_decomposed``, which torch's and torchao's quantizers insert.

In dequantizing ops, ``quant_min``, ``quant_max`` and ``dtype`` only describe the quantized input.
Values quantized per tensor or per channel to whole bytes become ``QuantizeLinear`` and
``DequantizeLinear``, around which onnxruntime looks for operators that it can compute on integers.
``quantization_parameters`` has the ops that choose scales and zero points.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.promotion import promote
from coreai_onnx.lower.nodes.values import Dim, Number, Value, dims_of, dtype_of
from coreai_onnx.lower.walk.registry import lowers

_BYTES = (torch.int8, torch.uint8)
_WORDS = (torch.int16, torch.uint16)
_WORDS_SINCE = 21
"""The opset in which ``QuantizeLinear`` takes 16-bit integers."""


@lowers(
    "quantized_decomposed.quantize_per_tensor.default",
    "quantized_decomposed.quantize_per_tensor.tensor",
    "quantized_decomposed.quantize_per_tensor.tensor2",
)
def quantize_per_tensor(
    op: OpBuilder,
    input: Value,
    scale: Value | Number,
    zero_point: Value | Number,
    quant_min: Value | int,
    quant_max: Value | int,
    dtype: torch.dtype,
) -> Value:
    """round(input / scale) + zero_point, clamped to [quant_min, quant_max]."""
    values = op.cast(input, torch.float32)
    scale = _scalar(op, scale, torch.float32)
    # Limits that are tensors are known only at run time.
    limits_known = isinstance(quant_min, int) and isinstance(quant_max, int)
    if not _has_linear_ops(op, dtype) or not limits_known:
        zero_point = _scalar(op, zero_point, torch.float32)
        return _steps(op, values, scale, zero_point, quant_min, quant_max, dtype)
    result = op.QuantizeLinear(values, scale, _scalar(op, zero_point, dtype))
    return _clamped(op, result, quant_min, quant_max, dtype)


@lowers("quantized_decomposed.quantize_per_channel.default")
def quantize_per_channel(
    op: OpBuilder,
    input: Value,
    scales: Value,
    zero_points: Value,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Value:
    """round(input / scale) + zero_point, clamped; scales and zero points along an axis."""
    values, scales = op.cast(input, torch.float32), op.cast(scales, torch.float32)
    if not _has_linear_ops(op, dtype):
        scales = _along(op, scales, axis, input)
        zeros = _along(op, op.cast(zero_points, torch.float32), axis, input)
        return _steps(op, values, scales, zeros, quant_min, quant_max, dtype)
    result = op.QuantizeLinear(values, scales, op.cast(zero_points, dtype), axis=axis)
    return _clamped(op, result, quant_min, quant_max, dtype)


@lowers("quantized_decomposed.fake_quant_per_channel.default")
def fake_quant_per_channel(
    op: OpBuilder,
    input: Value,
    scales: Value,
    zero_points: Value,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> Value:
    """The nearest value that a quantized channel can have."""
    dtype = _narrowest(quant_min, quant_max)
    parameters = (scales, zero_points, axis)
    codes = quantize_per_channel(op, input, *parameters, quant_min, quant_max, dtype)
    return dequantize_per_channel(op, codes, *parameters, dtype)


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
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Value:
    """(input - zero_point) * scale."""
    target = out_dtype or torch.float32
    if target == torch.float32 and _dequantizes(op, input, dtype, zero_point):
        # DequantizeLinear takes no zero point for int32.
        zeros = None if dtype == torch.int32 else _scalar(op, zero_point, dtype)
        return op.DequantizeLinear(input, _scalar(op, scale, target), zeros)
    centered = op.Sub(op.cast(input, target), _scalar(op, zero_point, target))
    return op.cast(op.Mul(centered, _scalar(op, scale, target)), target)


@lowers("quantized_decomposed.dequantize_per_channel.default")
def dequantize_per_channel(
    op: OpBuilder,
    input: Value,
    scales: Value,
    zero_points: Value | None,
    axis: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Value:
    """(input - zero_point) * scale, with scales and zero points along an axis."""
    target = out_dtype or torch.float32
    scales = op.cast(scales, torch.float32)
    if _dequantizes(op, input, dtype, zero_points):
        zeros = None
        if zero_points is not None and dtype != torch.int32:
            zeros = op.cast(zero_points, dtype)
        values = op.DequantizeLinear(input, scales, zeros, axis=axis)
        return values if target == torch.float32 else op.cast(values, target)
    centered = op.cast(input, torch.float32)
    if zero_points is not None:
        zeros = op.cast(zero_points, torch.float32)
        centered = op.Sub(centered, _along(op, zeros, axis, input))
    return op.cast(op.Mul(centered, _along(op, scales, axis, input)), target)


@lowers("quantized_decomposed.dequantize_per_channel_group.default")
def dequantize_per_channel_group(
    op: OpBuilder,
    input: Value,
    scales: Value,
    zero_points: Value | None,
    group_size: int,
    output_dtype: torch.dtype,
) -> Value:
    """(input - zero point) * scale, both per group of columns; [rows, columns].

    Lowered to elementary ops: onnxruntime computes these for a constant weight once, when it loads
    the model. It would run ``DequantizeLinear`` in every run, or round the other factor of a
    product to 8 bits. The target ``contrib`` keeps 4-bit weights with ``MatMulNBits``.
    """
    rows, groups, group_size = _groups(input, scales, group_size)
    centered = op.reshape(input, [rows, groups, group_size])
    if zero_points is not None:
        centered = op.Sub(*promote(op, centered, op.reshape(zero_points, [rows, groups, 1])))
    values = op.Mul(*promote(op, centered, op.reshape(scales, [rows, groups, 1])))
    return op.cast(op.reshape(values, dims_of(input)), output_dtype)


@lowers("quantized_decomposed.quantize_per_channel_group.default")
def quantize_per_channel_group(
    op: OpBuilder,
    input: Value,
    scales: Value,
    zero_points: Value,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    group_size: int,
) -> Value:
    """round(input / scale + zero_point) per group of columns, clamped; [rows, columns]."""
    rows, groups, group_size = _groups(input, scales, group_size)
    values = op.reshape(input, [rows, groups, group_size])
    form = [rows, groups, 1]
    scales, zero_points = op.reshape(scales, form), op.reshape(zero_points, form)
    steps = quantize_per_token(op, values, scales, zero_points, quant_min, quant_max, dtype)
    return op.reshape(steps, dims_of(input))


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
    # As in torch, whose product with the reciprocal is rounded differently than a quotient.
    scaled = op.Mul(*promote(op, input, op.Reciprocal(scales)))
    steps = op.Round(op.Add(*promote(op, scaled, zero_points)))
    kept = op.Clip(steps, op.like(steps, quant_min), op.like(steps, quant_max))
    return op.cast(kept, dtype)


@lowers("quantized_decomposed.dequantize_per_token.default")
def dequantize_per_token(
    op: OpBuilder, input: Value, scales: Value, zero_points: Value, output_dtype: torch.dtype
) -> Value:
    """(input - zero_point) * scale, per row."""
    centered = op.Sub(*promote(op, input, zero_points))
    return op.cast(op.Mul(*promote(op, centered, scales)), output_dtype)


@lowers("quantized_decomposed.convert_element_type.no_fuse")
def convert_element_type(op: OpBuilder, input: Value, dtype: torch.dtype) -> Value:
    """Input in another dtype."""
    return op.cast(input, dtype)


def _has_linear_ops(op: OpBuilder, dtype: torch.dtype) -> bool:
    """Whether ``QuantizeLinear`` and ``DequantizeLinear`` take a dtype in this opset."""
    return dtype in _BYTES or (dtype in _WORDS and op.opset >= _WORDS_SINCE)


def _dequantizes(
    op: OpBuilder, input: Value, dtype: torch.dtype, zero_point: Value | Number | None
) -> bool:
    """Whether ``DequantizeLinear`` takes a dtype with these zero points.

    int32 is for biases: zero points must be zero, and onnxruntime cannot load a product or a view
    of computed values that are dequantized from int32.
    """
    if dtype == torch.int32:
        return input.const_value is not None and _is_zero(zero_point)
    whole = not isinstance(zero_point, Value) or not dtype_of(zero_point).is_floating_point
    return whole and _has_linear_ops(op, dtype)


def _is_zero(x: Value | Number | None) -> bool:
    """Whether a number, or a constant tensor, is zero; absent zero points are."""
    if not isinstance(x, Value):
        return not x
    return x.const_value is not None and not x.const_value.numpy().any()


def _narrowest(low: int, high: int) -> torch.dtype:
    """Return the first dtype that holds all integers from ``low`` to ``high``."""
    dtypes = (*_BYTES, *_WORDS)
    holding = (d for d in dtypes if torch.iinfo(d).min <= low and high <= torch.iinfo(d).max)
    return next(holding, torch.int32)


def _steps(
    op: OpBuilder,
    values: Value,
    scale: Value,
    zero_point: Value,
    low: Value | int,
    high: Value | int,
    dtype: torch.dtype,
) -> Value:
    """Quantize with elementary ops, in float32."""
    shifted = op.Add(op.Round(op.Div(values, scale)), zero_point)
    low, high = (_scalar(op, x, torch.float32) for x in (low, high))
    return op.cast(op.Clip(shifted, low, high), dtype)


def _clamped(
    op: OpBuilder, steps: Value, low: Value | int, high: Value | int, dtype: torch.dtype
) -> Value:
    """Clamp quantized values where the limits are narrower than those of the dtype."""
    # QuantizeLinear clamps to the limits of the dtype.
    info = torch.iinfo(dtype)
    assert isinstance(low, int)
    assert isinstance(high, int)
    if low <= info.min and high >= info.max:
        return steps
    low, high = max(low, info.min), min(high, info.max)
    if dtype in _BYTES:
        return op.Clip(steps, op.const(low, dtype), op.const(high, dtype))
    # onnxruntime has no Clip of 16-bit integers
    wide = op.cast(steps, torch.int32)
    kept = op.Clip(wide, op.const(low, torch.int32), op.const(high, torch.int32))
    return op.cast(kept, dtype)


def _along(op: OpBuilder, x: Value, axis: int, like: Value) -> Value:
    """Return a vector as a tensor that broadcasts along one axis of another."""
    rank = len(dims_of(like))
    return op.reshape(x, [*(1,) * axis, dims_of(x)[0], *(1,) * (rank - axis - 1)])


def _groups(input: Value, scales: Value, group_size: int) -> Sequence[Dim]:
    """Return the number of rows, of groups in a row, and of elements in a group."""
    rows, columns = dims_of(input)
    if isinstance(columns, int) and group_size > columns and dims_of(scales)[-1] == 1:
        # A single group may be declared longer than the rows.
        group_size = columns
    return rows, columns // group_size, group_size


def _scalar(op: OpBuilder, x: Value | Number, dtype: torch.dtype) -> Value:
    """Return a number, or a tensor of one element, as a 0-d value."""
    if isinstance(x, int | float):
        return op.const(x, dtype)
    return op.cast(op.reshape(x, []) if dims_of(x) else x, dtype)
