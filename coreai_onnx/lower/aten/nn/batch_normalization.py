"""Batch and instance normalization, with running and with batch statistics."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.lower.aten.nn.normalization import moments, wide
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value, dims_of, dtype_of, numel, rank_of
from coreai_onnx.lower.walk.registry import lowers


@lowers("aten.batch_norm.default", "aten.native_batch_norm.default")
@lowers("aten._native_batch_norm_legit.no_stats")
@lowers("aten._native_batch_norm_legit_no_training.default")
@lowers("aten._batch_norm_no_update.default", empty=1)
@lowers("aten._native_batch_norm_legit_functional.default", updates=True)
@lowers("aten._batch_norm_with_update_functional.default", training=True, empty=1, updates=True)
def batch_norm(
    op: OpBuilder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None = None,
    running_var: Value | None = None,
    *,
    training: bool = False,
    momentum: float = 0.0,
    eps: float,
    empty: int = 0,
    updates: bool = False,
) -> Value | tuple[Value | None, ...]:
    """(x - mean) / √(var + eps) * weight + bias per channel, by running or the batch's statistics.

    Further results are the batch's mean and 1 / √(var + eps), which are empty with running
    statistics, ``empty`` empty tensors, and with ``updates`` the new running statistics.
    """
    new = (running_mean, running_var)
    if updates and training and running_mean is not None and running_var is not None:
        new = _updated(op, input, running_mean, running_var, momentum)
    if training or running_mean is None or running_var is None:
        results = _trained(op, input, weight, bias, eps, running_mean)
    else:
        result = _with_running(op, input, weight, bias, running_mean, running_var, eps)
        # The composite has one result; the empty ones are needed only if the program uses them.
        if op.only_first_used and not updates:
            return result
        results = result, _nothing(op), _nothing(op)
    if op.only_first_used and not updates:
        return results[0]
    return (*results, *(_nothing(op) for _ in range(empty)), *(new if updates else ()))


@lowers("aten.instance_norm.default", whole=True)
def instance_norm(
    op: OpBuilder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    *,
    use_input_stats: bool,
    eps: float,
) -> Value:
    """(x - mean) / √(var + eps) * weight + bias per sample and channel."""
    if not use_input_stats and running_mean is not None and running_var is not None:
        return _with_running(op, input, weight, bias, running_mean, running_var, eps)
    if rank_of(input) >= 3 and running_mean is None and op.keeps(input, weight, bias):
        return op.composite("instance_norm", [input, weight, bias], eps=eps)
    if 0 in dims_of(input):
        return input
    x = wide(op, input)
    # onnxruntime has no float64 kernel, and statistics of narrow dtypes are rounded below.
    if dtype_of(input) == torch.float32:
        scale, shift = _per_channel(op, x, weight, 1), _per_channel(op, x, bias, 0)
        return op.InstanceNormalization(x, scale, shift, epsilon=eps)
    statistics = moments(op, x, list(range(2, rank_of(x))), eps)
    mean, rstd = (_stored(op, s, input, (weight, bias, running_mean)) for s in statistics)
    return _scaled(op, op.Mul(op.Sub(x, mean), rstd), weight, bias)


# ---------------------------------------------------------------------- parts
def _with_running(
    op: OpBuilder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    eps: float,
) -> Value:
    """Normalize by given statistics, in at least float32."""
    # The composite requires scale and bias, since ONNX's BatchNormalization does.
    if rank_of(input) >= 2 and op.keeps(input, weight, bias, mean, variance):
        channels = [dims_of(input)[1]]
        scale = op.expand(op.like(mean, 1), channels) if weight is None else weight
        shift = op.expand(op.like(mean, 0), channels) if bias is None else bias
        return op.composite("batch_norm", [input, scale, shift, mean, variance], eps=eps)
    x = wide(op, input)
    if 0 in dims_of(input):
        return input
    parameters = [
        _per_channel(op, x, weight, 1),
        _per_channel(op, x, bias, 0),
        op.cast(mean, dtype_of(x)),
        op.cast(variance, dtype_of(x)),
    ]
    return op.BatchNormalization(x, *parameters, epsilon=eps)


def _trained(
    op: OpBuilder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    eps: float,
    running: Value | None = None,
) -> tuple[Value, Value, Value]:
    """Normalize by the batch's statistics; return them too, [C]."""
    x = wide(op, input)
    statistics = moments(op, x, _batch_axes(x), eps)
    mean, rstd = (_stored(op, s, input, (weight, bias, running)) for s in statistics)
    result = _scaled(op, op.Mul(op.Sub(x, mean), rstd), weight, bias)
    channels = [dims_of(x)[1]]
    return result, op.reshape(mean, channels), op.reshape(rstd, channels)


def _stored(
    op: OpBuilder, statistic: Value, input: Value, parameters: Sequence[Value | None]
) -> Value:
    """Return a statistic as torch stores it: rounded to the dtype of a narrow input.

    If a parameter is wider, it is stored in float32.
    """
    if any(p is not None and p.dtype != input.dtype for p in parameters):
        return statistic
    return op.cast(op.cast(statistic, dtype_of(input)), dtype_of(statistic))


def _updated(
    op: OpBuilder, input: Value, mean: Value, variance: Value, momentum: float
) -> tuple[Value, Value]:
    """Return running statistics moved toward the batch's mean and unbiased variance."""
    x, dims = wide(op, input), dims_of(input)
    axes = _batch_axes(x)
    batch_mean = op.ReduceMean(x, axes, keepdims=1)
    centered = op.Sub(x, batch_mean)
    squares = op.ReduceSum(op.Mul(centered, centered), axes, keepdims=0)
    count = numel([dims[0], *dims[2:]])
    unbiased = op.Div(squares, op.cast(op.dim(count - 1), dtype_of(x)))

    def moved(old: Value, new: Value) -> Value:
        current = op.cast(new, dtype_of(old))
        # In torch, momentum is the weight of the new value; in ONNX, that of the old one.
        return op.Add(op.Mul(old, 1 - momentum), op.Mul(current, momentum))

    return moved(mean, op.reshape(batch_mean, [dims[1]])), moved(variance, unbiased)


def _batch_axes(x: Value) -> list[int]:
    return [0, *range(2, rank_of(x))]


def _per_channel(op: OpBuilder, x: Value, parameter: Value | None, default: float) -> Value:
    """Return a parameter [C] in the dtype of x."""
    if parameter is None:
        return op.expand(op.like(x, default), [dims_of(x)[1]])
    return op.cast(parameter, dtype_of(x))


def _scaled(op: OpBuilder, x: Value, weight: Value | None, bias: Value | None) -> Value:
    shape = [dims_of(x)[1], *[1] * (rank_of(x) - 2)]
    if weight is not None:
        x = op.Mul(x, op.reshape(op.cast(weight, dtype_of(x)), shape))
    if bias is not None:
        x = op.Add(x, op.reshape(op.cast(bias, dtype_of(x)), shape))
    return x


def _nothing(op: OpBuilder) -> Value:
    return op.const(torch.zeros(0))
