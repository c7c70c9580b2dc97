"""Pooling spelled element by element of the window."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.lower.checking import check, op_types


def test_maxima_of_large_integers_keep_their_last_bit() -> None:
    x = torch.tensor([[[2**60, 2**60 + 1, 5, 2**60 + 2]]])
    model = check(lambda x: F.max_pool1d(x, 2, return_indices=True), x)
    assert "MaxPool" not in op_types(model)


def test_the_first_of_equal_maxima_wins() -> None:
    x = torch.ones(1, 1, 4, 4, dtype=torch.int64)
    check(lambda x: F.max_pool2d(x, 2, return_indices=True), x)


def test_integer_averages_are_divided_towards_zero() -> None:
    check(lambda x: F.avg_pool2d(x, 2), torch.tensor([[[[-1, -2], [-3, -1]]]]))
