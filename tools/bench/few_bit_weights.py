"""Weights of few bits for implementations that take them in another form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from coreai_onnx.composites.few_bit_weights import LARGEST_STEP, PARTS, dequantized


def weight_matrix(
    inputs: Sequence[torch.Tensor | None], attributes: Mapping[str, Any]
) -> torch.Tensor:
    """Return the dequantized weight of ``linear_nbits``, ``[N, K]`` in float32."""
    codes, scales = inputs[1:3]
    assert codes is not None
    assert scales is not None
    parts = [codes, scales, *[None] * (len(PARTS) - 2)]
    groups = dequantized(parts, attributes["bits"], 0, torch.float32)
    return groups.flatten(-2).contiguous()


def rounded_rows(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return 8-bit codes of a matrix with a scale for each row, and the scales."""
    scales = matrix.abs().amax(1) / LARGEST_STEP
    return (matrix / scales[:, None]).round().to(torch.int8), scales
