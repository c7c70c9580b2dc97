"""The gated activation of Gemma: gelu(gate) * up."""

from __future__ import annotations

import math

import torch

from coreai_onnx.composites.checks import Attributes, Dims
from coreai_onnx.composites.declaration import Attribute, Composite, Input


def geglu(gate: torch.Tensor, up: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """Return ``gelu(gate) * up`` (Shazeer 2020, "GLU Variants", equation 6).

    Args:
        gate: Floating, of any shape.
        up: The shape and dtype of ``gate``.
        approximate: ``"none"``: ``gelu(x) = x / 2 (1 + erf(x / √2))``; ``"tanh"``:
            ``x / 2 (1 + tanh(√(2/π) (x + 0.044715 x³)))``
            (Hendrycks & Gimpel 2016, section 2).

    Returns:
        The shape and dtype of ``gate``; computed in float32 (float64 in float64), rounded once.
    """
    wide = torch.float64 if gate.dtype == torch.float64 else torch.float32
    x = gate.to(wide)
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        activated = 0.5 * x * (1 + torch.tanh(inner))
    else:
        activated = 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))
    return (activated * up.to(wide)).to(gate.dtype)


def _check(dims: Dims, attributes: Attributes) -> str:
    del dims
    approximate = attributes["approximate"]
    return "" if approximate in ("none", "tanh") else f"approximate is {approximate!r}"


COMPOSITE = Composite(
    name="geglu",
    inputs=(Input("gate"), Input("up")),
    outputs=("output",),
    attributes=(Attribute("approximate", "string", "none", structural=True),),
    reference=geglu,
    kernel=True,
    formula="gelu(gate) * up",
    variant_axes=(("tanh",),),
    check=_check,
)
