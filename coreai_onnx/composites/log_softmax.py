"""The logarithm of the softmax."""

from __future__ import annotations

import torch

from coreai_onnx.composites.checks import Attributes, Dims, axes_outside
from coreai_onnx.composites.declaration import Attribute, Composite, Input


def log_softmax(input: torch.Tensor, *, axis: int = -1) -> torch.Tensor:
    """Return ``input - log(sum(exp(input), axis))``, without overflow.

    Args:
        input: Floating, with at least one axis.
        axis: The axis that is normalized.

    Returns:
        The shape and dtype of ``input``; computed in float32 (float64 in float64), rounded once.
    """
    return torch.log_softmax(input, axis)


def _check(dims: Dims, attributes: Attributes) -> str:
    return axes_outside(dims, [attributes["axis"]])


COMPOSITE = Composite(
    name="log_softmax",
    inputs=(Input("input", aliases=("x", "logits", "inputs")),),
    outputs=("output",),
    attributes=(Attribute("axis", "int", -1, aliases=("dim",)),),
    reference=log_softmax,
    formula="input - log(sum(exp(input), axis))",
    check=_check,
)
