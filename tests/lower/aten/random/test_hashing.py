"""Hashes: every dtype, every choice of axes, any size."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([1.5, -2.0, float("inf"), -0.0]),
        torch.tensor([1.5, 3.0], dtype=torch.float16),
        torch.tensor([-7, 2**62, 3]),
        torch.tensor([-1, 4], dtype=torch.int8),
        torch.tensor([True, False, True]),
        torch.tensor(2.5),
    ],
)
def test_the_bits_of_float64_or_int64(x: torch.Tensor) -> None:
    check(torch.hash_tensor, x)


def test_axes() -> None:
    x = torch.randn(2, 3, 4)
    check(lambda x: (torch.hash_tensor(x, (0, 2)), torch.hash_tensor(x, 1, keepdim=True)), x)
