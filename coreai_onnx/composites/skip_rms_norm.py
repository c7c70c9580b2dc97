"""Root-mean-square normalization of the sum of a residual connection."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.composites.checks import check_trailing_axes, negative_axes
from coreai_onnx.composites.declaration import Attribute, Composite, Input
from coreai_onnx.composites.rms_norm import rms_norm


def skip_rms_norm(
    input: torch.Tensor,
    skip: torch.Tensor,
    scale: torch.Tensor | None = None,
    *,
    axes: Sequence[int] = (-1,),
    eps: float | torch.Tensor = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``rms_norm(input + skip, scale)``, and the sum.

    Args:
        input: ``[..., dim]``, floating.
        skip: The shape and dtype of ``input``.
        scale: As in ``rms_norm``.
        axes: Trailing axes to normalize over.
        eps: Added to the mean square.

    Returns:
        The normalized sum and the sum, both with the shape and dtype of ``input``. The sum is
        rounded to that dtype before it is normalized.
    """
    total = input + skip
    return rms_norm(total, scale, axes=axes, eps=eps), total


COMPOSITE = Composite(
    name="skip_rms_norm",
    inputs=(
        Input("input", aliases=("x", "hidden_states", "inputs")),
        Input("skip", aliases=("residual",)),
        Input("scale", optional=True, dtype="any", dims="~*", aliases=("weight", "gamma")),
    ),
    outputs=("output", "sum"),
    output_dims=("*", "*"),
    attributes=(
        Attribute("axes", "ints", (-1,), structural=True),
        Attribute("eps", "float", 1e-5, aliases=("variance_epsilon", "epsilon", "norm_eps")),
    ),
    reference=skip_rms_norm,
    kernel=True,
    formula="sum = input + skip; output = rms_norm(sum, scale)",
    variant_axes=(
        ("axes2", "axes3", "axes4", "axes"),
        ("unscaled", "wide_scale", "narrow_scale"),
    ),
    check=check_trailing_axes,
    canonical=negative_axes,
)
