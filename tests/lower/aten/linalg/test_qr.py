"""QR with the signs of LAPACK: modes, tall and wide, columns that are zero already, products."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check

_SEED = torch.Generator().manual_seed(0)
X = torch.randn(2, 5, 3, generator=_SEED)


@pytest.mark.parametrize("mode", ["reduced", "complete"])
def test_modes(mode: str) -> None:
    for x in (X, X.mT.contiguous(), X[0].double(), X[:, :3]):
        check(lambda x: torch.linalg.qr(x, mode), x)


def test_only_r() -> None:
    check(lambda x: torch.linalg.qr(x, "r").R, X, opset=18)


def test_triangular_already() -> None:
    check(torch.linalg.qr, torch.eye(3) * torch.tensor([1.0, -2.0, 0.0]))


def test_reflections() -> None:
    check(torch.geqrf, X)
    check(lambda x: torch.linalg.householder_product(*torch.geqrf(x)), X)


@pytest.mark.parametrize("transpose", [False, True])
def test_products(transpose: bool) -> None:
    def left(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.ormqr(*torch.geqrf(x), c, True, transpose)

    def right(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.ormqr(*torch.geqrf(x), c.mT.contiguous(), False, transpose)

    check(left, X, X.flip(0))
    check(right, X, X.flip(0))


def test_any_size() -> None:
    n = torch.export.Dim("n", min=4)
    check(torch.linalg.qr, X, dynamic_shapes=({1: n},), others=[(X[:, :4],)])
