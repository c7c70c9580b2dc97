"""Root-mean-square normalization."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.composites.checks import check_trailing_axes, negative_axes
from coreai_onnx.composites.declaration import Attribute, Composite, Input


def rms_norm(
    input: torch.Tensor,
    scale: torch.Tensor | None = None,
    *,
    axes: Sequence[int] = (-1,),
    eps: float | torch.Tensor = 1e-5,
) -> torch.Tensor:
    """Return ``input / sqrt(mean(input²) + eps) * scale`` (Zhang & Sennrich 2019, eq. 4).

    Args:
        input: ``[..., dim]``, floating.
        scale: Broadcastable to ``input``. A float32 scale is applied in float32 before the result
            is rounded; a scale in the dtype of ``input`` is applied after rounding.
        axes: Trailing axes to normalize over.
        eps: Added to the mean square.

    Returns:
        The shape and dtype of ``input``; statistics are computed in float32 (float64 in float64).
    """
    wide = torch.float64 if input.dtype == torch.float64 else torch.float32
    x = input.to(wide)
    mean_square = torch.mean(x * x, dim=list(axes), keepdim=True)
    normalized = x / torch.sqrt(mean_square + eps)
    if scale is None:
        return normalized.to(input.dtype)
    if scale.dtype == torch.float32 and input.dtype != torch.float32:
        return (normalized * scale).to(input.dtype)
    rounded = normalized.to(input.dtype).to(wide)
    return (rounded * scale.to(wide)).to(input.dtype)


COMPOSITE = Composite(
    name="rms_norm",
    inputs=(
        Input("input", aliases=("x", "hidden_states", "inputs")),
        Input("scale", optional=True, dtype="any", dims="~*", aliases=("weight", "gamma")),
    ),
    outputs=("output",),
    attributes=(
        Attribute("axes", "ints", (-1,), structural=True),
        Attribute("eps", "float", 1e-5, aliases=("variance_epsilon", "epsilon", "norm_eps")),
    ),
    reference=rms_norm,
    kernel=True,
    formula="input / sqrt(mean(input^2, axes) + eps) * scale",
    variant_axes=(
        ("axes2", "axes3", "axes4", "axes"),
        ("unscaled", "wide_scale", "narrow_scale"),
    ),
    check=check_trailing_axes,
    canonical=negative_axes,
)
