"""How far results move if weights and inputs change by one unit in the last place.

A model that quantizes its activations while it runs rounds them to integers. A difference of one
unit in the last place moves a value that is near a half to the next integer, and the result by a
step of the quantization. The model computed in a wider dtype says nothing about such steps.
"""

from __future__ import annotations

import copy

import torch
from torch.utils import _pytree as pytree

from tests.models.architecture import expected_outputs
from tools.foreign.case import Inputs

CHANGES = 8
"""How many random changes are tried."""


def sensitivity(
    module: torch.nn.Module, arguments: Inputs, expected: list[torch.Tensor]
) -> list[float]:
    """Return the largest absolute difference of each result over :data:`CHANGES` changes.

    Args:
        module: The model. Parameters of tensor subclasses, which are quantized, are not changed.
        arguments: Of its forward; floating tensors are changed.
        expected: The results without a change.
    """
    largest = [0.0] * len(expected)
    for seed in range(CHANGES):
        generator = torch.Generator().manual_seed(seed)
        changed = copy.deepcopy(module)
        for parameter in changed.parameters():
            if type(parameter.data) is torch.Tensor and parameter.is_floating_point():
                parameter.data = _moved(parameter.data, generator)
        inputs = pytree.tree_map(lambda x, g=generator: _moved(x, g), arguments)
        for index, result in enumerate(expected_outputs(changed, inputs)):
            moved = (result.double() - expected[index].double()).abs().max()
            largest[index] = max(largest[index], float(moved))
    return largest


def _moved(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a tensor whose floating values are one unit in the last place higher or lower."""
    if not (isinstance(x, torch.Tensor) and x.is_floating_point()):
        return x
    up = torch.rand(x.shape, generator=generator) < 0.5
    infinity = torch.full_like(x, torch.inf)
    return torch.where(up, torch.nextafter(x, infinity), torch.nextafter(x, -infinity))
