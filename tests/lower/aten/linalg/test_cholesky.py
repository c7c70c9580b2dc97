"""Cholesky factors and triangular systems: both triangles, batches, failures, any size."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check

_SEED = torch.Generator().manual_seed(0)
X = torch.randn(2, 4, 4, generator=_SEED)
A = X @ X.mT + torch.eye(4)
T = X + 3 * torch.eye(4)
B = torch.randn(2, 4, 3, generator=_SEED)


@pytest.mark.parametrize("upper", [False, True])
def test_factors(upper: bool) -> None:
    check(lambda a: torch.linalg.cholesky(a, upper=upper), A)
    check(lambda a: torch.linalg.cholesky(a, upper=upper), A[0].double(), opset=18)
    check(lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a, upper=upper), upper), A)
    check(lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a, upper=upper), upper), A, B)


def test_not_positive() -> None:
    bad = torch.stack([torch.eye(3), torch.diag(torch.tensor([1.0, -1.0, 1.0]))])
    check(lambda a: torch.linalg.cholesky_ex(a).info, bad)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangular_systems(upper: bool, unit: bool) -> None:
    def solve(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve_triangular(a, b, upper=upper, unitriangular=unit)

    def from_the_right(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve_triangular(a, b.mT, upper=upper, left=False, unitriangular=unit)

    check(solve, T.triu() if upper else T.tril(), B)
    check(solve, T[0].triu() if upper else T[0].tril(), B)
    check(from_the_right, T.triu() if upper else T.tril(), B)


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
def test_triangular_solve() -> None:
    for transpose in (False, True):
        check(lambda b, a, t=transpose: torch.triangular_solve(b, a, transpose=t)[0], B, T)


def test_any_size() -> None:
    n = torch.export.Dim("n", min=2)
    check(
        torch.linalg.cholesky,
        A,
        dynamic_shapes=({1: n, 2: n},),
        others=[(A[:, :3, :3],)],
    )
