"""Orthogonal polynomials against torch."""

from __future__ import annotations

import pytest
import torch
from torch import special

from tests.lower.checking import check

NAMES = [
    "chebyshev_polynomial_t",
    "chebyshev_polynomial_u",
    "chebyshev_polynomial_v",
    "chebyshev_polynomial_w",
    "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w",
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
]
DEGREES = [-1, 0, 1, 2, 3, 5, 9, 12]


@pytest.mark.parametrize("name", NAMES)
def test_degrees(name):
    x = torch.tensor([0.0, 1.0, -1.0, 0.3, 0.9, 1.7], dtype=torch.float64)
    n = torch.tensor(DEGREES)
    check(getattr(special, name), x.repeat_interleave(len(n)), n.repeat(len(x)))


@pytest.mark.parametrize("name", NAMES)
def test_numbers(name):
    polynomial = getattr(special, name)
    check(lambda x: polynomial(x, 3), torch.tensor([0.2, 0.9]))
    check(lambda n: polynomial(0.4, n), torch.tensor([0, 1, 4]))
    check(lambda x: polynomial(x, 2), torch.tensor([1, 0]))


def test_beyond_the_limit_of_hermite():
    n = torch.tensor([20, 129, 200])
    check(special.hermite_polynomial_he, torch.full((3,), 0.1), n)


def test_dynamic_and_empty():
    batch = torch.export.Dim("batch")
    check(
        special.legendre_polynomial_p,
        torch.rand(3, 1),
        torch.tensor([1, 5]),
        dynamic_shapes=({0: batch}, None),
        others=[(torch.rand(4, 1), torch.tensor([0, 7]))],
    )
    check(special.laguerre_polynomial_l, torch.empty(0), torch.empty(0))
