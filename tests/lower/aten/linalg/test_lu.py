"""LU and what follows: batches, singular matrices, tall and wide ones, any size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.lower.checking import check

_SEED = torch.Generator().manual_seed(0)
A = torch.randn(2, 4, 4, generator=_SEED) + 2 * torch.eye(4)
B = torch.randn(2, 4, 3, generator=_SEED)
N = torch.export.Dim("n", min=2)


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.det,
        torch.linalg.slogdet,
        torch.logdet,
        torch.linalg.inv,
        torch.inverse,
        torch.linalg.lu,
        torch.linalg.lu_factor,
        lambda a: torch.lu_unpack(*torch.linalg.lu_factor(a)),
    ],
)
def test_of_one_matrix(function: Callable[..., torch.Tensor]) -> None:
    check(function, A)
    check(function, A[0].double())


@pytest.mark.parametrize("function", [torch.linalg.det, torch.linalg.slogdet, torch.logdet])
@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 3, 3), (0, 0, 0), (2, 0, 0)], ids=str)
def test_determinants_of_empty_batches(
    function: Callable[..., torch.Tensor], shape: tuple[int, ...]
) -> None:
    check(function, torch.zeros(shape))


@pytest.mark.parametrize(
    "function", [torch.linalg.det, torch.linalg.slogdet, torch.logdet, torch.linalg.inv_ex]
)
def test_a_batch_that_turns_out_empty(function: Callable[..., torch.Tensor]) -> None:
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    check(function, A, dynamic_shapes=shapes, others=[(torch.zeros(0, 4, 4),)])


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 3, 3), (0, 0, 0), (2, 0, 0)], ids=str)
def test_systems_of_empty_batches(shape: tuple[int, ...]) -> None:
    right = torch.zeros(*shape[:-1], 2)
    check(torch.linalg.solve_ex, torch.zeros(shape), right)
    check(lambda a, b: torch.linalg.solve(a, b, left=False), torch.zeros(shape), right.mT)


@pytest.mark.parametrize("opset", [18, 26])
def test_systems(opset: int) -> None:
    check(torch.linalg.solve, A, B, opset=opset)
    check(torch.linalg.solve, A[0], B)
    check(torch.linalg.solve, A, B[0, :, 0])
    check(torch.linalg.solve, A, B[..., 0])
    check(lambda a, b: torch.linalg.solve(a, b.mT, left=False), A, B)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_systems_from_factors(left: bool, adjoint: bool) -> None:
    def solve(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        lu, pivots = torch.linalg.lu_factor(a)
        rhs = b if left else b.mT
        return torch.linalg.lu_solve(lu, pivots, rhs, left=left, adjoint=adjoint)

    check(solve, A, B)


def test_tall_and_wide() -> None:
    for x in (B, B.mT.contiguous()):
        check(torch.linalg.lu, x)
        check(torch.linalg.lu_factor, x)


def test_singular() -> None:
    singular = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    check(torch.linalg.det, singular)
    check(torch.linalg.slogdet, singular)
    check(lambda a: torch.linalg.inv_ex(a).info, singular)
    check(lambda a: torch.linalg.lu_factor_ex(a).info, torch.zeros(2, 3, 3))


def test_any_size() -> None:
    check(
        lambda a: (torch.linalg.inv(a), torch.linalg.det(a)),
        A,
        dynamic_shapes=({1: N, 2: N},),
        others=[(A[:, :3, :3],)],
    )


def test_no_elements() -> None:
    for dims in ((0, 0), (2, 0, 0), (0, 3, 3)):
        check(torch.linalg.inv, torch.zeros(dims))
    check(torch.linalg.det, torch.zeros(0, 0))
    check(torch.linalg.slogdet, torch.zeros(2, 0, 0))


def test_no_right_hand_sides() -> None:
    factors, pivots = torch.linalg.lu_factor(torch.randn(3, 3))
    check(torch.linalg.lu_solve, factors, pivots, torch.zeros(3, 0))
