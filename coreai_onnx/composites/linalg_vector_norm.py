"""Vector norms over axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from coreai_onnx.composites.checks import Attributes, Dims, check_axes
from coreai_onnx.composites.declaration import Attribute, Composite, Input


def linalg_vector_norm(
    input: torch.Tensor,
    *,
    ord: float | torch.Tensor = 2.0,
    axes: Sequence[int] = (-1,),
    keep_dim: int = 0,
) -> torch.Tensor:
    """Return ``sum(|input| ** ord, axes) ** (1 / ord)``.

    Args:
        input: Floating, with at least one axis.
        ord: The order; 0 counts the elements that are not zero, infinity returns the largest
            magnitude, minus infinity the smallest.
        axes: The axes to reduce; torch's ``dtype`` is a cast before the norm.
        keep_dim: Nonzero: the reduced axes are kept with size 1.

    Returns:
        The norms in the dtype of ``input``; computed in float32 (float64 in float64), rounded
        once.
    """
    axes = tuple(axes)
    norm: torch.Tensor = torch.linalg.vector_norm(input, float(ord), axes, keepdim=bool(keep_dim))
    return norm


def _axes_from_the_front(dims: Dims, attributes: Attributes) -> dict[str, Any]:
    """Return non-negative axes: onnxruntime supports no others for empty tensors."""
    rank = len(dims["input"])
    return {**attributes, "axes": sorted(axis % rank for axis in attributes["axes"])}


COMPOSITE = Composite(
    name="linalg_vector_norm",
    inputs=(Input("input", aliases=("x", "hidden_states", "inputs")),),
    outputs=("output",),
    output_dims=("?",),
    attributes=(
        Attribute("ord", "float", 2.0, aliases=("p",), structural=True),
        Attribute("axes", "ints", (-1,), aliases=("dim",)),
        Attribute("keep_dim", "int", 0, aliases=("keepdim",)),
    ),
    reference=linalg_vector_norm,
    formula="sum(abs(input) ^ ord, axes) ^ (1 / ord)",
    variant_axes=(("absolute", "count", "greatest", "least", "power"),),
    check=check_axes,
    canonical=_axes_from_the_front,
)
