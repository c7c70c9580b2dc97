"""Distinct elements and runs."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check

X = torch.tensor([[2, 2, 1], [2, 2, 1], [0, 5, 5], [2, 2, 1]])
DTYPES = [torch.int64, torch.int32, torch.uint8, torch.float32, torch.float64, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_distinct_elements(dtype: torch.dtype) -> None:
    check(
        lambda x: (
            x.unique(),
            *x.unique(return_inverse=True, return_counts=True),
            *x.unique(dim=0, return_inverse=True, return_counts=True),
            x.unique(dim=1),
        ),
        X.to(dtype),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_runs(dtype: torch.dtype) -> None:
    check(
        lambda x: (
            x.unique_consecutive(),
            *x.unique_consecutive(return_inverse=True, return_counts=True),
            *x.unique_consecutive(dim=0, return_inverse=True, return_counts=True),
            *x.unique_consecutive(dim=1, return_counts=True),
        ),
        X.to(dtype),
    )


def test_booleans() -> None:
    check(lambda x: (x.unique(), x.unique_consecutive()), X > 1)


def test_zero_d_and_empty() -> None:
    check(lambda x: (*x.unique(return_inverse=True), x.unique_consecutive()), torch.tensor(3.0))
    check(lambda x: (x.unique(), x.unique_consecutive()), torch.zeros(0))


def test_large_integers() -> None:
    x = torch.tensor([2**53 + 1, 2**53, 2**53 + 1])
    check(lambda x: x.unique(return_counts=True), x)


def test_symbolic_sizes() -> None:
    check(
        lambda x: (*x.unique(return_inverse=True), *x.unique_consecutive(return_counts=True)),
        X,
        dynamic_shapes=({0: torch.export.Dim("n", min=2)},),
        others=[(torch.randint(0, 4, (9, 3)),)],
    )
