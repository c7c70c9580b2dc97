"""Batch normalization with given statistics."""

from __future__ import annotations

import torch

from coreai_onnx.composites.checks import check_channels
from coreai_onnx.composites.declaration import Attribute, Composite, Input


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
        scale: ``[channels]``; its own dtype or that of ``input``.
        bias: Like ``scale``.
        mean: ``[channels]``, the running mean.
        variance: ``[channels]``, the running variance.
        eps: Added to the variance.

    Returns:
        The shape and dtype of ``input``; computed in float32 (float64 in float64), rounded once.
    """
    wide = torch.float64 if input.dtype == torch.float64 else torch.float32
    shape = [-1, *[1] * (input.ndim - 2)]
    centered = input.to(wide) - mean.to(wide).reshape(shape)
    result = centered / torch.sqrt(variance.to(wide) + eps).reshape(shape)
    result = result * scale.to(wide).reshape(shape) + bias.to(wide).reshape(shape)
    return result.to(input.dtype)


COMPOSITE = Composite(
    name="batch_norm",
    inputs=(
        Input("input", dims="N C *", aliases=("x", "hidden_states", "inputs")),
        Input("scale", dtype="any", dims="C", aliases=("weight", "gamma")),
        Input("bias", dtype="any", dims="C", aliases=("beta",)),
        Input("mean", dtype="any", dims="C", aliases=("running_mean",)),
        Input("variance", dtype="any", dims="C", aliases=("running_var",)),
    ),
    outputs=("output",),
    attributes=(Attribute("eps", "float", 1e-5, aliases=("variance_epsilon", "epsilon")),),
    reference=batch_norm,
    formula="(input - mean) / sqrt(variance + eps) * scale + bias",
    variant_axes=(("wide_scale",),),
    check=check_channels(2),
)
