"""Window functions."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check

X = torch.ones(9)
NAMES = ["bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("decompose", [False, True])
def test_windows(name: str, decompose: bool) -> None:
    make = getattr(torch, name)
    check(
        lambda x: (x * make(9), x * make(9, False), make(4, dtype=torch.float64)),
        X,
        decompose=decompose,
    )


def test_shapes_of_windows() -> None:
    check(
        lambda x: (
            x * torch.hamming_window(9, True, 0.6),
            x * torch.hamming_window(9, False, 0.6, 0.3),
            x * torch.kaiser_window(9, True, 7.0),
        ),
        X,
    )
