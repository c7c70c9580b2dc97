"""Layer normalization of the sum of a residual connection."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.composites.checks import check_trailing_axes, negative_axes
from coreai_onnx.composites.declaration import Attribute, Composite, Input
from coreai_onnx.composites.layer_norm import layer_norm


def skip_layer_norm(
    input: torch.Tensor,
    skip: torch.Tensor,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    axes: Sequence[int] = (-1,),
    eps: float | torch.Tensor = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``layer_norm(input + skip, scale, bias)``, and the sum.

    Args:
        input: ``[..., *normalized_shape]``, floating.
        skip: The shape and dtype of ``input``.
        scale: As in ``layer_norm``.
        bias: Like ``scale``.
        axes: Trailing axes to normalize over.
        eps: Added to the variance.

    Returns:
        The normalized sum and the sum, both with the shape and dtype of ``input``. The sum is
        rounded to that dtype before it is normalized.
    """
    total = input + skip
    return layer_norm(total, scale, bias, axes=axes, eps=eps), total


COMPOSITE = Composite(
    name="skip_layer_norm",
    inputs=(
        Input("input", aliases=("x", "hidden_states", "inputs")),
        Input("skip", aliases=("residual",)),
        Input("scale", optional=True, dtype="any", dims="~*", aliases=("weight", "gamma")),
        Input("bias", optional=True, dtype="any", dims="~*", aliases=("beta",)),
    ),
    outputs=("output", "sum"),
    output_dims=("*", "*"),
    attributes=(
        Attribute("axes", "ints", (-1,), structural=True),
        Attribute("eps", "float", 1e-5, aliases=("variance_epsilon", "epsilon", "layer_norm_eps")),
    ),
    reference=skip_layer_norm,
    kernel=True,
    formula="sum = input + skip; output = layer_norm(sum, scale, bias)",
    variant_axes=(
        ("axes2", "axes3", "axes4", "axes"),
        ("unscaled", "no_bias", "bias_only"),
        ("wide_scale",),
    ),
    check=check_trailing_axes,
    canonical=negative_axes,
)
