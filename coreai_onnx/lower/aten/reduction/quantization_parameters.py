"""Ops of ``quantized_decomposed`` that choose scales and zero points from the values of a tensor.

Formulas: ``torch.ao.quantization.utils.determine_qparams`` and
``torch.ao.quantization.fx._decomposed``.
"""

from __future__ import annotations

import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value, dtype_of
from coreai_onnx.lower.walk.registry import lowers

_EPS = torch.finfo(torch.float32).eps
_UNSIGNED_MIDDLE = 128
"""The zero point of symmetric quantization to uint8."""


@lowers("quantized_decomposed.choose_qparams.tensor")
def choose_qparams(
    op: OpBuilder, input: Value, quant_min: int, quant_max: int, eps: float
) -> tuple[Value, Value]:
    """The scale, at least ``eps``, and zero point for which the range covers 0 and all elements."""
    if (quant_min, quant_max) == (0, 255) and eps <= _EPS and dtype_of(input) == torch.float32:
        # without the lower limit eps, which changes dequantized values by less than eps
        _, scale, zero = op.DynamicQuantizeLinear(input, _outputs=3)
        return _as_vectors(op, scale, zero)
    low, high = _range(op, input)
    scale = _at_least(op, op.Div(op.Sub(high, low), op.like(low, quant_max - quant_min)), eps)
    steps = op.Round(op.Div(op.cast(low, torch.float32), scale))
    zero = op.Clip(op.Sub(float(quant_min), steps), float(quant_min), float(quant_max))
    return _as_vectors(op, scale, zero)


@lowers("quantized_decomposed.choose_qparams_symmetric.tensor")
def choose_qparams_symmetric(
    op: OpBuilder, input: Value, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[Value, Value]:
    """The scale, at least ``eps``, for which the range covers the largest magnitude."""
    low, high = _range(op, input)
    largest = op.Max(op.Neg(low), high)
    scale = _at_least(op, op.Div(largest, op.like(low, (quant_max - quant_min) / 2)), eps)
    zero = _UNSIGNED_MIDDLE if dtype == torch.uint8 else 0
    return _as_vectors(op, scale, op.const(zero, torch.int64))


@lowers("quantized_decomposed.choose_qparams_per_token.default")
def choose_qparams_per_token(op: OpBuilder, input: Value) -> tuple[Value, Value]:
    """The scale of each row for which int8 covers its largest magnitude; zero points of 0."""
    largest = op.ReduceMax(op.Abs(input), [-1], keepdims=1)
    if dtype_of(input) == torch.float16:
        largest = op.cast(largest, torch.float32)
    scale = op.Div(op.Max(largest, op.like(largest, 1e-5)), op.like(largest, 127))
    return op.cast(scale, torch.float64), op.cast(op.Mul(scale, op.like(scale, 0)), torch.int64)


@lowers("quantized_decomposed.choose_qparams_per_token_asymmetric.default")
def choose_qparams_per_token_asymmetric(op: OpBuilder, input: Value) -> tuple[Value, Value]:
    """The scale and zero point of each row for which 8 bits cover 0 and all elements."""
    low, high = (
        op.cast(reduce(input, [-1], keepdims=1), torch.float32)
        for reduce in (op.ReduceMin, op.ReduceMax)
    )
    low, high = op.Min(low, op.like(low, 0)), op.Max(high, op.like(high, 0))
    scale = op.Max(op.Div(op.Sub(high, low), 255.0), _EPS)
    first, last = op.Div(low, scale), op.Div(high, scale)
    # As in torch, one end of the range determines the zero point, that with the smaller error.
    error = op.Add(op.Add(first, -128.0), op.Add(last, 127.0))
    zero = op.Where(op.Greater(error, 0.0), op.Sub(-128.0, first), op.Sub(127.0, last))
    zero = op.Round(op.Clip(zero, -128.0, 127.0))
    return op.cast(scale, torch.float64), op.cast(zero, torch.int64)


def _range(op: OpBuilder, input: Value) -> tuple[Value, Value]:
    """Return the smallest and largest element, extended to contain 0; in the input's dtype."""
    values = op.cast(input, torch.float32)
    low, high = op.ReduceMin(values, keepdims=0), op.ReduceMax(values, keepdims=0)
    low, high = op.Min(low, op.like(low, 0)), op.Max(high, op.like(high, 0))
    return op.cast(low, dtype_of(input)), op.cast(high, dtype_of(input))


def _at_least(op: OpBuilder, scale: Value, eps: float) -> Value:
    """Return a scale in float32, with a lower limit."""
    return op.Max(op.cast(scale, torch.float32), eps)


def _as_vectors(op: OpBuilder, scale: Value, zero: Value) -> tuple[Value, Value]:
    """Return 0-d results in the dtypes and shape of the ops of torch."""
    return (
        op.cast(op.unsqueeze(scale, [0]), torch.float64),
        op.cast(op.unsqueeze(zero, [0]), torch.int64),
    )
