"""Normalization over groups of channels."""

from __future__ import annotations

import torch

from coreai_onnx.composites.checks import (
    Attributes,
    Dims,
    not_multiple,
    other_channels,
    rank_below,
)
from coreai_onnx.composites.declaration import Attribute, Composite, Input


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
    wide = torch.float64 if input.dtype == torch.float64 else torch.float32
    batch, channels = input.shape[:2]
    x = input.to(wide).reshape(batch, num_groups, -1)
    centered = x - torch.mean(x, dim=-1, keepdim=True)
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
        return f"num_groups is {groups}, at least 1 is needed"
    channels = dims["input"][1] if len(dims["input"]) > 1 else None
    return (
        rank_below(dims, "input", 2)
        or not_multiple("the number of channels", channels, "num_groups", groups)
        or other_channels(dims)
    )


COMPOSITE = Composite(
    name="group_norm",
    inputs=(
        Input("input", dims="N C *", aliases=("x", "hidden_states", "inputs")),
        Input("scale", optional=True, dtype="any", dims="C", aliases=("weight", "gamma")),
        Input("bias", optional=True, dtype="any", dims="C", aliases=("beta",)),
    ),
    outputs=("output",),
    attributes=(
        Attribute("num_groups", "int", 1, aliases=("groups",)),
        Attribute("eps", "float", 1e-5, aliases=("variance_epsilon", "epsilon")),
    ),
    reference=group_norm,
    kernel=True,
    formula="(input - mean(group)) / sqrt(variance(group) + eps) * scale + bias",
    variant_axes=(("unscaled", "no_bias", "bias_only"), ("wide_scale",)),
    check=_check,
)
