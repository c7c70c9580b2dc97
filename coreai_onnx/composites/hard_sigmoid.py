"""Hard sigmoid, the piecewise linear approximation of the sigmoid."""

from __future__ import annotations

import torch

from coreai_onnx.composites.declaration import Composite, Input


def hard_sigmoid(input: torch.Tensor) -> torch.Tensor:
    """Return ``clamp(input + 3, 0, 6) / 6`` (Howard et al. 2019, section 5.2).

    Args:
        input: Floating, of any shape.

    Returns:
        The shape and dtype of ``input``; computed in float32 (float64 in float64), rounded once.
    """
    return torch.nn.functional.hardsigmoid(input)


COMPOSITE = Composite(
    name="hard_sigmoid",
    inputs=(Input("input", aliases=("x", "hidden_states", "inputs")),),
    outputs=("output",),
    attributes=(),
    reference=hard_sigmoid,
    formula="clamp(input + 3, 0, 6) / 6",
    aten=("aten.hardsigmoid.default",),
)
