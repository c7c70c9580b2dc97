"""Instance normalization: every channel of every sample is normalized separately."""

from __future__ import annotations

import torch

from coreai_onnx.composites.checks import check_channels
from coreai_onnx.composites.declaration import Attribute, Composite, Input


def instance_norm(
    input: torch.Tensor,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    eps: float | torch.Tensor = 1e-5,
) -> torch.Tensor:
    """Return ``(input - mean) / sqrt(variance + eps) * scale + bias`` (Ulyanov et al. 2016).

    Mean and variance are those of one channel of one sample, over all its positions.

    Args:
        input: ``[batch, channels, ...]``, floating, with at least one axis of positions.
        scale: ``[channels]``; its own dtype or that of ``input``.
        bias: Like ``scale``.
        eps: Added to the variance.

    Returns:
        The shape and dtype of ``input``; computed in float32 (float64 in float64). As in torch,
        mean and ``1 / sqrt(variance + eps)`` of a float16 or bfloat16 input are rounded to its
        dtype, unless scale or bias has another dtype.
    """
    wide = torch.float64 if input.dtype == torch.float64 else torch.float32
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


COMPOSITE = Composite(
    name="instance_norm",
    inputs=(
        Input("input", dims="N C *", aliases=("x", "hidden_states", "inputs")),
        Input("scale", optional=True, dtype="any", dims="C", aliases=("weight", "gamma")),
        Input("bias", optional=True, dtype="any", dims="C", aliases=("beta",)),
    ),
    outputs=("output",),
    attributes=(Attribute("eps", "float", 1e-5, aliases=("variance_epsilon", "epsilon")),),
    reference=instance_norm,
    formula="(input - mean(places)) / sqrt(variance(places) + eps) * scale + bias",
    variant_axes=(("unscaled", "no_bias", "bias_only"), ("wide_scale",)),
    check=check_channels(3),
)
