"""Bodies of the normalizations whose scale and bias belong to channels; see `bodies.norms`."""

from __future__ import annotations

import torch

from coreai_onnx.bodies.body import BodyBuilder
from coreai_onnx.bodies.norms import EPS, eps, mixed, parameter, parameter_words
from coreai_onnx.bodies.writers import writes
from coreai_onnx.lower.nodes.values import Value


@writes("group_norm", words=parameter_words)
def group_norm(b: BodyBuilder) -> Value:
    """Normalize every group as a row; then apply scale and bias per channel.

    GroupNormalization is not used: its variance, mean(x²) - mean(x)², suffers from cancellation
    where torch's does not.
    """
    op, x = b.op, b.inputs[0]
    shape = op.Shape(x)
    samples = op.Shape(x, start=0, end=1)
    groups = op.Reshape(b.attribute("num_groups"), [1])
    size = op.Div(op.ReduceProd(op.Shape(x, start=1), keepdims=1), groups)
    # allowzero, because a size of 0 would otherwise mean that of the input.
    rows = op.Reshape(b.widened(x), op.Concat(samples, groups, size, axis=0), allowzero=1)
    if b.dtype == torch.float64:
        normalized = _normalized(b, rows)
    else:
        # InstanceNormalization requires scale and bias, one per group here. Those of the call are
        # per channel and follow later.
        one, zero = op.Expand(1.0, groups), op.Expand(0.0, groups)
        normalized = op.InstanceNormalization(rows, one, zero, epsilon=EPS)
    result = normalized
    if b.input("scale") is not None or b.input("bias") is not None:
        channels = op.Shape(x, start=1, end=2)
        places = op.ReduceProd(op.Shape(x, start=2), keepdims=1)
        target = op.Concat(samples, channels, places, axis=0)
        result = _scaled(b, op.Reshape(normalized, target, allowzero=1))
    return op.cast(op.Reshape(result, shape, allowzero=1), b.dtype)


@writes("instance_norm", words=parameter_words)
def instance_norm(b: BodyBuilder) -> Value:
    """Normalize every channel of every sample; round narrow statistics, as torch does.

    InstanceNormalization is not used: it requires a scale, a bias and float32.
    """
    op, x = b.op, b.inputs[0]
    scale, bias = b.input("scale"), b.input("bias")
    if b.dtype == torch.float32:
        channels = None if scale is not None and bias is not None else op.Shape(x, start=1, end=2)
        one = op.Expand(1.0, channels) if scale is None else parameter(b, scale)
        zero = op.Expand(0.0, channels) if bias is None else parameter(b, bias)
        return op.InstanceNormalization(x, one, zero, epsilon=EPS)
    shape = op.Shape(x)
    places = op.ReduceProd(op.Shape(x, start=2), keepdims=1)
    target = op.Concat(op.Shape(x, start=0, end=2), places, axis=0)
    rows = op.Reshape(b.widened(x), target, allowzero=1)
    mean, deviation = _moments(b, rows)
    rounded = [op.Reciprocal(deviation), mean]
    # torch keeps the statistics in float32 if a parameter is wider than the input.
    if not mixed(b):
        rounded = [b.widened(op.cast(s, b.dtype)) for s in rounded]
    normalized = op.Mul(op.Sub(rows, rounded[1]), rounded[0])
    result = op.Reshape(_scaled(b, normalized), shape, allowzero=1)
    return op.cast(result, b.dtype)


@writes("batch_norm", words=parameter_words)
def batch_norm(b: BodyBuilder) -> Value:
    """BatchNormalization, in float32 for narrow dtypes."""
    x, *parameters_ = b.inputs
    operands = [b.widened(x), *(parameter(b, p) for p in parameters_)]
    return b.op.cast(b.op.BatchNormalization(*operands, epsilon=EPS), b.dtype)


def _moments(b: BodyBuilder, rows: Value) -> tuple[Value, Value]:
    """Return mean and √(variance + eps) along the last of three axes."""
    mean = b.op.ReduceMean(rows, [2], keepdims=1)
    centered = b.op.Sub(rows, mean)
    variance = b.op.ReduceMean(b.op.Mul(centered, centered), [2], keepdims=1)
    return mean, b.op.Sqrt(b.op.Add(variance, eps(b)))


def _normalized(b: BodyBuilder, rows: Value) -> Value:
    mean, deviation = _moments(b, rows)
    return b.op.Div(b.op.Sub(rows, mean), deviation)


def _scaled(b: BodyBuilder, x: Value) -> Value:
    """Scale and shift ``[N, C, places]`` per channel."""
    scale, bias = b.input("scale"), b.input("bias")
    if scale is not None:
        x = b.op.Mul(x, b.op.unsqueeze(parameter(b, scale), [1]))
    if bias is not None:
        x = b.op.Add(x, b.op.unsqueeze(parameter(b, bias), [1]))
    return x
