"""Layer, RMS and group normalization, by ONNX's own norms if the opset has them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.composites.checks import compute_dtype
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import (
    Dim,
    Value,
    dims_of,
    dtype_of,
    numel,
    rank_of,
)
from coreai_onnx.lower.walk.registry import lowers


# ---------------------------------------------------------------------- layer norm
@lowers("aten.layer_norm.default", whole=True)
def layer_norm(
    op: OpBuilder,
    input: Value,
    normalized_shape: Sequence[Dim],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
) -> Value:
    """(x - mean) / √(var + eps) * weight + bias over the trailing axes."""
    if normalized_shape and op.keeps(input, weight, bias):
        axes = _trailing_axes(normalized_shape)
        return op.composite("layer_norm", [input, weight, bias], axes=axes, eps=eps)
    x, (weight, bias) = _one_dtype(op, input, weight, bias)
    # LayerNormalization requires a scale, of the normalized shape.
    if weight is None:
        weight = op.expand(op.like(x, 1), normalized_shape)
    if bias is not None:
        bias = op.expand(bias, normalized_shape)
    if 0 in dims_of(input):
        return input
    axis = rank_of(input) - len(normalized_shape)
    return op.LayerNormalization(x, weight, bias, axis=axis, epsilon=eps)


@lowers("aten.native_layer_norm.default")
def native_layer_norm(
    op: OpBuilder,
    input: Value,
    normalized_shape: Sequence[Dim],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> Value | tuple[Value, Value, Value]:
    """The layer norm, the mean and 1 / √(var + eps)."""
    result = layer_norm(op, input, normalized_shape, weight, bias, eps)
    if op.only_first_used:
        return result
    axes = list(range(rank_of(input) - len(normalized_shape), rank_of(input)))
    return (result, *moments(op, wide(op, input), axes, eps))


# ---------------------------------------------------------------------- RMS norm
@lowers("aten.rms_norm.default", whole=True)
def rms_norm(
    op: OpBuilder,
    input: Value,
    normalized_shape: Sequence[Dim],
    weight: Value | None = None,
    eps: float | None = None,
) -> Value:
    """x / √(mean(x²) + eps) * weight over the trailing axes, in at least float32."""
    eps = default_eps(dtype_of(input)) if eps is None else eps
    if normalized_shape and op.keeps(input, weight):
        axes = _trailing_axes(normalized_shape)
        return op.composite("rms_norm", [input, weight], axes=axes, eps=eps)
    axis = rank_of(input) - len(normalized_shape)
    x, (weight,) = _one_dtype(op, input, weight)
    if op.opset >= 23 and 0 not in dims_of(input):
        if weight is None:
            weight = op.expand(op.like(x, 1), normalized_shape)
        return op.RMSNormalization(x, weight, axis=axis, epsilon=eps)
    x = wide(op, x)
    result = op.Div(x, _root_mean_square(op, x, axis, eps))
    return result if weight is None else op.Mul(result, op.cast(weight, dtype_of(x)))


@lowers("aten._fused_rms_norm.default")
def fused_rms_norm(
    op: OpBuilder,
    input: Value,
    normalized_shape: Sequence[Dim],
    weight: Value | None,
    eps: float | None,
) -> Value | tuple[Value, Value]:
    """The RMS norm, and 1 / √(mean(x²) + eps)."""
    result = rms_norm(op, input, normalized_shape, weight, eps)
    if op.only_first_used:
        return result
    eps = default_eps(dtype_of(input)) if eps is None else eps
    axis = rank_of(input) - len(normalized_shape)
    return result, op.Reciprocal(_root_mean_square(op, wide(op, input), axis, eps))


def default_eps(dtype: torch.dtype) -> float:
    """Return the default eps of torch's RMS norm: the machine epsilon of its compute dtype."""
    return torch.finfo(compute_dtype(dtype)).eps


def _trailing_axes(normalized_shape: Sequence[Dim]) -> list[int]:
    return list(range(-len(normalized_shape), 0))


def _root_mean_square(op: OpBuilder, x: Value, axis: int, eps: float) -> Value:
    axes = list(range(axis, rank_of(x)))
    square = op.ReduceMean(op.Mul(x, x), axes, keepdims=1)
    return op.Sqrt(op.Add(square, eps))


# ---------------------------------------------------------------------- group norm
@lowers("aten.group_norm.default", whole=True)
def group_norm(
    op: OpBuilder,
    input: Value,
    num_groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
) -> Value:
    """(x - mean) / √(var + eps) per group of channels, * weight + bias per channel."""
    if rank_of(input) >= 2 and op.keeps(input, weight, bias):
        return op.composite("group_norm", [input, weight, bias], num_groups=num_groups, eps=eps)
    if 0 in dims_of(input):
        return input
    result = _normalized_groups(op, wide(op, input), num_groups, eps)
    shape = [dims_of(input)[1], *[1] * (rank_of(input) - 2)]
    if weight is not None:
        result = op.Mul(result, op.reshape(op.cast(weight, dtype_of(result)), shape))
    if bias is not None:
        result = op.Add(result, op.reshape(op.cast(bias, dtype_of(result)), shape))
    return result


@lowers("aten.native_group_norm.default")
def native_group_norm(
    op: OpBuilder,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    N: Dim,
    group: int,
    eps: float,
) -> Value | tuple[Value, Value, Value]:
    """The group norm, the means and 1 / √(var + eps) of the groups."""
    result = group_norm(op, input, group, weight, bias, eps)
    if op.only_first_used:
        return result
    rows = op.reshape(wide(op, input), [N, group, _group_size(dims_of(input), group)])
    mean, rstd = moments(op, rows, [2], eps)
    return result, op.squeeze(mean, [2]), op.squeeze(rstd, [2])


def _normalized_groups(op: OpBuilder, x: Value, groups: int, eps: float) -> Value:
    """Return x normalized per group.

    GroupNormalization is not used: its variance, mean(x²) - mean(x)², suffers from cancellation
    where torch's does not.
    """
    dims = dims_of(x)
    rows = op.reshape(x, [dims[0], groups, _group_size(dims, groups)])
    if dtype_of(x) == torch.float32:
        # InstanceNormalization requires scale and bias. A group is one of its channels.
        one, zero = (op.const(torch.full((groups,), float(v))) for v in (1, 0))
        normalized = op.InstanceNormalization(rows, one, zero, epsilon=eps)
    else:
        mean, rstd = moments(op, rows, [2], eps)
        normalized = op.Mul(op.Sub(rows, mean), rstd)
    return op.reshape(normalized, dims)


def _group_size(dims: Sequence[Dim], groups: int) -> Dim:
    """Return the number of elements in a group of one sample."""
    size = numel(dims[1:])
    # Channels are a multiple of groups, so that a quotient of symbols needs no floor.
    return size // groups if isinstance(size, int) else size / groups


# ---------------------------------------------------------------------- parts
def moments(op: OpBuilder, x: Value, axes: Sequence[int], eps: float) -> tuple[Value, Value]:
    """Return the mean and 1 / √(var + eps) over some axes, which are kept with size 1."""
    mean = op.ReduceMean(x, list(axes), keepdims=1)
    centered = op.Sub(x, mean)
    variance = op.ReduceMean(op.Mul(centered, centered), list(axes), keepdims=1)
    return mean, op.Reciprocal(op.Sqrt(op.Add(variance, eps)))


def wide(op: OpBuilder, x: Value) -> Value:
    """Return a floating-point value in torch's dtype for statistics: at least float32."""
    return op.cast(x, torch.float32) if dtype_of(x) in (torch.float16, torch.bfloat16) else x


def _one_dtype(
    op: OpBuilder, x: Value, *parameters: Value | None
) -> tuple[Value, list[Value | None]]:
    """Return all values in the dtype of x, or in float32 if the parameters' dtype differs."""
    present = [p for p in parameters if p is not None]
    if all(p.dtype == x.dtype for p in present):
        return x, list(parameters)
    return wide(op, x), [p if p is None else op.cast(p, dtype_of(wide(op, x))) for p in parameters]
