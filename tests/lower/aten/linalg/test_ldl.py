"""L D Lᵀ: pivots of one and two columns, batches, zero columns, and solving with the factors."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check


def symmetric(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    half = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return half + half.mT


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (3, 6, 6)])
def test_factors_and_solutions(shape: tuple[int, ...]) -> None:
    a, b = symmetric(*shape), torch.randn(*shape[:-1], 3, dtype=torch.float64)
    check(torch.linalg.ldl_factor_ex, a)
    factors, pivots = torch.linalg.ldl_factor(a)
    check(torch.linalg.ldl_solve, factors, pivots, b)


def test_blocks_of_two_where_the_diagonal_is_zero() -> None:
    a = symmetric(4, 4).fill_diagonal_(0)
    assert (torch.linalg.ldl_factor_ex(a).pivots < 0).any()
    check(torch.linalg.ldl_factor_ex, a)


def test_zero_columns_are_counted() -> None:
    check(torch.linalg.ldl_factor_ex, torch.zeros(3, 3))
    check(torch.linalg.ldl_factor_ex, torch.diag(torch.tensor([2.0, 0.0, 3.0])))


def test_nothing_to_factor() -> None:
    check(torch.linalg.ldl_factor_ex, torch.zeros(2, 0, 0))


def test_no_matrices_and_one_right_hand_side_for_all() -> None:
    none = torch.zeros(0, 3, 3)
    check(torch.linalg.ldl_solve, none, torch.zeros(0, 3, dtype=torch.int32), torch.zeros(3, 2))


def test_any_size() -> None:
    shapes = ({0: torch.export.Dim("n"), 1: torch.export.Dim("n")},)
    others = [(symmetric(7, 7),), (symmetric(2, 2),)]
    check(
        lambda a: torch.linalg.ldl_factor_ex(a)[:2],
        symmetric(4, 4),
        dynamic_shapes=shapes,
        others=others,
    )
