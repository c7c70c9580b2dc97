"""The Gaussian error linear unit."""

from __future__ import annotations

import torch

from coreai_onnx.composites.checks import Attributes, Dims
from coreai_onnx.composites.declaration import Attribute, Composite, Input


def gelu(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """Return ``input * Φ(input)``, with the normal CDF Φ (Hendrycks & Gimpel 2016, eq. 2).

    Args:
        input: Floating, of any shape.
        approximate: ``"none"``: ``x / 2 (1 + erf(x / √2))``; ``"tanh"``:
            ``x / 2 (1 + tanh(√(2/π) (x + 0.044715 x³)))``.

    Returns:
        The shape and dtype of ``input``; computed in float32 (float64 in float64), rounded once.
    """
    return torch.nn.functional.gelu(input, approximate=approximate)


def _check(dims: Dims, attributes: Attributes) -> str:
    del dims
    approximate = attributes["approximate"]
    return "" if approximate in ("none", "tanh") else f"approximate is {approximate!r}"


COMPOSITE = Composite(
    name="gelu",
    inputs=(Input("input", aliases=("x", "hidden_states", "inputs")),),
    outputs=("output",),
    attributes=(Attribute("approximate", "string", "none", structural=True),),
    reference=gelu,
    formula="input * (1 + erf(input / sqrt(2))) / 2",
    variant_axes=(("tanh",),),
    check=_check,
    aten=("aten.gelu.default",),
)
