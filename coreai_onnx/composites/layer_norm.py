"""Layer normalization."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.composites.checks import check_trailing_axes, negative_axes
from coreai_onnx.composites.declaration import Attribute, Composite, Input


def layer_norm(
    input: torch.Tensor,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    axes: Sequence[int] = (-1,),
    eps: float | torch.Tensor = 1e-5,
) -> torch.Tensor:
    """Return ``(input - mean) / sqrt(variance + eps) * scale + bias`` (Ba et al. 2016, eq. 4).

    Args:
        input: ``[..., *normalized_shape]``, floating.
        scale: Broadcastable to ``input``; its own dtype or that of ``input``.
        bias: Like ``scale``.
        axes: Trailing axes to normalize over.
        eps: Added to the variance.

    Returns:
        The shape and dtype of ``input``; computed in float32 (float64 in float64), the variance
        in a second pass over the centered values.
    """
    wide = torch.float64 if input.dtype == torch.float64 else torch.float32
    x = input.to(wide)
    centered = x - torch.mean(x, dim=list(axes), keepdim=True)
    variance = torch.mean(centered * centered, dim=list(axes), keepdim=True)
    result = centered / torch.sqrt(variance + eps)
    if scale is not None:
        result = result * scale.to(wide)
    if bias is not None:
        result = result + bias.to(wide)
    return result.to(input.dtype)


COMPOSITE = Composite(
    name="layer_norm",
    inputs=(
        Input("input", aliases=("x", "hidden_states", "inputs")),
        Input("scale", optional=True, dtype="any", dims="~*", aliases=("weight", "gamma")),
        Input("bias", optional=True, dtype="any", dims="~*", aliases=("beta",)),
    ),
    outputs=("output",),
    attributes=(
        Attribute("axes", "ints", (-1,), structural=True),
        Attribute("eps", "float", 1e-5, aliases=("variance_epsilon", "epsilon", "layer_norm_eps")),
    ),
    reference=layer_norm,
    kernel=True,
    formula="(input - mean(input, axes)) / sqrt(variance(input, axes) + eps) * scale + bias",
    variant_axes=(
        ("axes2", "axes3", "axes4", "axes"),
        ("unscaled", "no_bias", "bias_only"),
        ("wide_scale",),
    ),
    check=check_trailing_axes,
    canonical=negative_axes,
)
