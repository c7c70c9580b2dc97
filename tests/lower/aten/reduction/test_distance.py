"""Lowerings of distances."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.lower.checking import check

NORMS = [0.0, 0.5, 1.0, 2.0, 3.0, float("inf")]


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cdist(p: float, dtype: torch.dtype) -> None:
    x, y = torch.randn(2, 3, 4).to(dtype), torch.randn(2, 5, 4).to(dtype)
    y[:, 0] = x[:, 0]
    check(lambda x, y: torch.cdist(x, y, p), x, y)
    check(lambda x, y: torch.cdist(x, y, p), x[0], y)


def test_cdist_of_many_rows_is_a_product() -> None:
    check(torch.cdist, torch.randn(30, 4), torch.randn(28, 4) + 3)


def test_cdist_of_nothing() -> None:
    check(torch.cdist, torch.randn(0, 4), torch.randn(3, 4))
    check(torch.cdist, torch.randn(2, 0), torch.randn(3, 0))


@pytest.mark.parametrize("p", NORMS)
def test_pdist(p: float) -> None:
    check(lambda x: F.pdist(x, p), torch.randn(5, 3))


def test_pdist_of_few_rows() -> None:
    for rows in (0, 1, 2):
        check(F.pdist, torch.randn(rows, 3))


def test_dynamic_sizes() -> None:
    rows = torch.export.Dim("rows", min=2, max=20)
    check(
        lambda x, y: torch.cdist(x, y, 1.0),
        torch.randn(4, 3),
        torch.randn(5, 3),
        dynamic_shapes=({0: rows}, None),
        others=[(torch.randn(7, 3), torch.randn(5, 3))],
    )


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("decompose", [False, True])
def test_cosine_similarity(dim: int, decompose: bool) -> None:
    x, y = torch.randn(3, 4, 5), torch.randn(3, 4, 5)
    y[:, 1] = 0
    check(lambda x, y: F.cosine_similarity(x, y, dim), x, y, decompose=decompose)
    check(lambda x, y: F.cosine_similarity(x, y, dim, 0.5), x, y[:1])
