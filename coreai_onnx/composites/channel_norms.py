"""Normalizations whose scale and bias belong to channels."""

from __future__ import annotations

import torch

from coreai_onnx.composites.checks import (
    Attributes,
    Dims,
    check_channels,
    compute_dtype,
    not_multiple,
    other_channels,
    rank_below,
)
from coreai_onnx.composites.declaration import Attribute, Composite, Input

_INPUT = Input("input", dims="N C *", aliases=("x", "hidden_states", "inputs"))
_SCALE = Input("scale", optional=True, dtype="any", dims="C", aliases=("weight", "gamma"))
_BIAS = Input("bias", optional=True, dtype="any", dims="C", aliases=("beta",))
_EPS = Attribute("eps", "float", 1e-5, aliases=("variance_epsilon", "epsilon"))


def group_norm(
    input: torch.Tensor,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    num_groups: int = 1,
    eps: float | torch.Tensor = 1e-5,
) -> torch.Tensor:
    """Return ``(input - mean) / sqrt(variance + eps) * scale + bias`` (Wu & He 2018, eq. 7).

    Mean and variance are those of a group: ``channels / num_groups`` adjacent channels with all
    their positions.

    Args:
        input: ``[batch, channels, ...]``, floating; ``channels % num_groups == 0``.
        scale: ``[channels]``; its own dtype or that of ``input``.
        bias: Like ``scale``.
        num_groups: Number of groups.
        eps: Added to the variance.

    Returns:
        The shape and dtype of ``input``; computed in float32 (float64 in float64), the variance
        in a second pass over the centered values.
    """
    wide = compute_dtype(input)
    batch, channels = input.shape[:2]
    x = input.to(wide).reshape(batch, num_groups, -1)
    centered = x - torch.mean(x, dim=-1, keepdim=True)
    # A second pass, because mean(x²) - mean(x)² cancels where the mean is large.
    variance = torch.mean(centered * centered, dim=-1, keepdim=True)
    result = (centered / torch.sqrt(variance + eps)).reshape(batch, channels, -1)
    if scale is not None:
        result = result * scale.to(wide).unsqueeze(-1)
    if bias is not None:
        result = result + bias.to(wide).unsqueeze(-1)
    return result.reshape(input.shape).to(input.dtype)


def _check(dims: Dims, attributes: Attributes) -> str:
    groups = attributes["num_groups"]
    if groups < 1:
        return f"num_groups must be at least 1, got {groups}"
    channels = dims["input"][1] if len(dims["input"]) > 1 else None
    return (
        rank_below(dims, "input", 2)
        or not_multiple("the number of channels", channels, "num_groups", groups)
        or other_channels(dims)
    )


GROUP_NORM = Composite(
    name="group_norm",
    inputs=(_INPUT, _SCALE, _BIAS),
    outputs=("output",),
    attributes=(Attribute("num_groups", "int", 1, aliases=("groups",)), _EPS),
    reference=group_norm,
    kernel=True,
    formula="(input - mean(group)) / sqrt(variance(group) + eps) * scale + bias",
    variant_axes=(("unscaled", "no_bias", "bias_only"), ("wide_scale",)),
    check=_check,
)


def instance_norm(
    input: torch.Tensor,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    eps: float | torch.Tensor = 1e-5,
) -> torch.Tensor:
    """Return ``(input - mean) / sqrt(variance + eps) * scale + bias`` (Ulyanov et al. 2016).

    Mean and variance are those of one channel of one sample, over all its positions, of which there
    is at least one axis. The arguments are those of :func:`group_norm`.

    Returns:
        The shape and dtype of ``input``; computed in float32 (float64 in float64). As in torch,
        mean and ``1 / sqrt(variance + eps)`` of a float16 or bfloat16 input are rounded to its
        dtype, unless scale or bias has another dtype.
    """
    wide = compute_dtype(input)
    batch, channels = input.shape[:2]
    x = input.to(wide).reshape(batch, channels, -1)
    mean = torch.mean(x, dim=-1, keepdim=True)
    variance = torch.mean((x - mean) * (x - mean), dim=-1, keepdim=True)
    inverse = 1 / torch.sqrt(variance + eps)
    if all(p is None or p.dtype == input.dtype for p in (scale, bias)):
        mean, inverse = mean.to(input.dtype).to(wide), inverse.to(input.dtype).to(wide)
    result = (x - mean) * inverse
    if scale is not None:
        result = result * scale.to(wide).unsqueeze(-1)
    if bias is not None:
        result = result + bias.to(wide).unsqueeze(-1)
    return result.reshape(input.shape).to(input.dtype)


INSTANCE_NORM = Composite(
    name="instance_norm",
    inputs=(_INPUT, _SCALE, _BIAS),
    outputs=("output",),
    attributes=(_EPS,),
    reference=instance_norm,
    formula="(input - mean(places)) / sqrt(variance(places) + eps) * scale + bias",
    variant_axes=(("unscaled", "no_bias", "bias_only"), ("wide_scale",)),
    check=check_channels(3),
)


def batch_norm(
    input: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    *,
    eps: float | torch.Tensor = 1e-5,
) -> torch.Tensor:
    """Return ``(input - mean) / sqrt(variance + eps) * scale + bias`` (Ioffe & Szegedy 2015).

    The statistics are the running ones of a trained model. A batch norm in training mode, which
    uses the statistics of the batch, is not a composite.

    Args:
        input: ``[batch, channels, ...]``, floating.
        scale: ``[channels]``, as all of the following; its own dtype or that of ``input``.
        bias: Like ``scale``.
        mean: The running mean.
        variance: The running variance.
        eps: Added to the variance.

    Returns:
        The shape and dtype of ``input``; computed in float32 (float64 in float64), rounded once.
    """
    wide = compute_dtype(input)
    shape = [-1, *[1] * (input.ndim - 2)]
    centered = input.to(wide) - mean.to(wide).reshape(shape)
    result = centered / torch.sqrt(variance.to(wide) + eps).reshape(shape)
    result = result * scale.to(wide).reshape(shape) + bias.to(wide).reshape(shape)
    return result.to(input.dtype)


BATCH_NORM = Composite(
    name="batch_norm",
    inputs=(
        _INPUT,
        Input("scale", dtype="any", dims="C", aliases=("weight", "gamma")),
        Input("bias", dtype="any", dims="C", aliases=("beta",)),
        Input("mean", dtype="any", dims="C", aliases=("running_mean",)),
        Input("variance", dtype="any", dims="C", aliases=("running_var",)),
    ),
    outputs=("output",),
    attributes=(_EPS,),
    reference=batch_norm,
    formula="(input - mean) / sqrt(variance + eps) * scale + bias",
    variant_axes=(("wide_scale",),),
    check=check_channels(2),
)
