"""The sigmoid linear unit, also called swish."""

from __future__ import annotations

import torch

from coreai_onnx.composites.declaration import Composite, Input


def silu(input: torch.Tensor) -> torch.Tensor:
    """Return ``input * sigmoid(input)`` (Elfwing et al. 2017, eq. 8).

    Args:
        input: Floating, of any shape.

    Returns:
        The shape and dtype of ``input``; computed in float32 (float64 in float64), rounded once.
    """
    return torch.nn.functional.silu(input)


COMPOSITE = Composite(
    name="silu",
    inputs=(Input("input", aliases=("x", "hidden_states", "inputs")),),
    outputs=("output",),
    attributes=(),
    reference=silu,
    formula="input * sigmoid(input)",
    aten=("aten.silu.default",),
)
