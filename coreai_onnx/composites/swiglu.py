"""The gated activation of most decoders: silu(gate) * up."""

from __future__ import annotations

import torch

from coreai_onnx.composites.declaration import Composite, Input


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return ``gate * sigmoid(gate) * up`` (Shazeer 2020, "GLU Variants", equation 6).

    Args:
        gate: Floating, of any shape.
        up: The shape and dtype of ``gate``.

    Returns:
        The shape and dtype of ``gate``; computed in float32 (float64 in float64), rounded once.
    """
    wide = torch.float64 if gate.dtype == torch.float64 else torch.float32
    x = gate.to(wide)
    return (x * torch.sigmoid(x) * up.to(wide)).to(gate.dtype)


COMPOSITE = Composite(
    name="swiglu",
    inputs=(Input("gate"), Input("up")),
    outputs=("output",),
    attributes=(),
    reference=swiglu,
    kernel=True,
    formula="gate * sigmoid(gate) * up",
)
