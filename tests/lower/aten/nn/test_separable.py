"""Filters along one axis."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.lower.aten.nn.separable import CUBIC, LINEAR, antialias_weights, sources, taps


@pytest.mark.parametrize("kernel", [LINEAR, CUBIC])
@pytest.mark.parametrize("align", [False, True])
def test_weights_sum_to_one_and_places_are_inside(kernel: int, align: bool) -> None:
    places, weights = taps(sources(5, 12, None, align_corners=align), 5, kernel)
    assert places.shape == weights.shape == (12, kernel)
    assert places.min() == 0
    assert places.max() == 4
    torch.testing.assert_close(weights.sum(1), torch.ones(12, dtype=torch.float64))


def test_aligned_corners_stay() -> None:
    assert sources(5, 9, None, align_corners=True).tolist()[::8] == [0.0, 4.0]


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialiased_weights_sum_to_one(mode: str) -> None:
    weights = antialias_weights(9, 4, None, mode, align_corners=False)
    assert weights.shape == (4, 9)
    torch.testing.assert_close(weights.sum(1), torch.ones(4, dtype=torch.float64))
