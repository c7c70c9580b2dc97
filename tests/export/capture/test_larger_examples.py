"""The error for an example that is smaller than one chunk of the model names the size to give."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

from coreai_onnx.errors import DynamicShapesError
from coreai_onnx.export.capture.explain import explained


class Chunks(torch.nn.Module):
    """Sums chunks of 8 steps, as state space models do; the last chunk is padded."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        missing = (8 - x.shape[1] % 8) % 8
        return F.pad(x, (0, 0, 0, missing)).reshape(x.shape[0], -1, 8, x.shape[2]).sum(2)


N = Dim("n", min=2, max=100)


def failure(model: torch.nn.Module, length: int) -> str:
    """Return the explanation of a failed export, which a retry may put into a warning."""
    x = torch.randn(2, length, 3)
    with pytest.raises(DynamicShapesError) as raised, explained():
        torch.export.export(model, (x,), dynamic_shapes=({1: N},))
    return str(raised.value)


def test_the_size_beyond_one_chunk_is_named() -> None:
    text = failure(Chunks(), 5)
    assert "the example has n (x.shape[1]) = 5" in text
    assert "special case for sizes up to 8" in text
    assert "for larger sizes, give an example of at least 9" in text
    assert "give an example" not in failure(Chunks(), 9)


class Even(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0], -1, 2, x.shape[2]).sum(2)


class Short(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if 4 < x.shape[1] <= 8 else x * 3


@pytest.mark.parametrize("model", [Even(), Short()], ids=["every_other", "between"])
def test_conditions_that_are_no_limit_give_no_advice(model: torch.nn.Module) -> None:
    assert "give an example" not in failure(model, 6)
