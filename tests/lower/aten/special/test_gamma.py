"""The gamma function's family against torch."""

from __future__ import annotations

import pytest
import torch
from torch import special

from tests.lower.checking import check

INF, NAN = float("inf"), float("nan")
EDGES = [0.0, 1.0, -1.0, 2.0, -2.0, 10.0, 0.5, -0.5, 1e-10, -1e-10, 100.0, 1e6, INF, NAN]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("function", [torch.lgamma, torch.digamma])
def test_logarithm_and_derivative(function, dtype):
    grid = torch.linspace(-20.03, 60, 300, dtype=torch.float64)
    check(function, torch.cat([grid, torch.tensor(EDGES, dtype=torch.float64)]).to(dtype))


@pytest.mark.parametrize("order", [0, 1, 2, 3, 4])
def test_polygamma(order):
    # torch computes trigamma of float32 below zero with an error above our tolerance, so float64
    grid = torch.linspace(-5.03, 40, 200, dtype=torch.float64)
    check(lambda x: torch.polygamma(order, x), grid)
    check(lambda x: torch.polygamma(order, x), torch.tensor([1, 3, 20]))
    check(lambda x: torch.polygamma(order, x), torch.linspace(0.1, 30, 50))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_zeta(dtype):
    x = torch.tensor([0.5, 1.0, 1.1, 2.0, 3.0, 7.5, 20.0, NAN], dtype=dtype)
    q = torch.tensor([-3.5, -2.0, 0.0, 0.1, 1.0, 5.0, 30.0, 1e4], dtype=dtype)
    check(special.zeta, x.repeat_interleave(8), q.repeat(8))
    check(lambda x: (special.zeta(x, 2.0), special.zeta(3.0, x)), q[3:])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("function", [torch.igamma, torch.igammac])
def test_incomplete(function, dtype):
    a = torch.tensor([0.01, 0.5, 1.0, 3.3, 10.0, 60.0, 0.0, -1.0, INF, NAN], dtype=dtype)
    x = torch.tensor([0.0, 1e-5, 0.3, 1.0, 2.9, 12.0, 55.0, 200.0, INF, -1.0, NAN], dtype=dtype)
    check(function, a.repeat_interleave(len(x)), x.repeat(len(a)))


def test_multivariate():
    check(lambda x: torch.mvlgamma(x, 3), torch.linspace(1.5, 20, 30))


@pytest.mark.parametrize("function", [torch.lgamma, torch.digamma])
def test_integers_and_empty(function):
    check(function, torch.tensor([1, 2, 30]))
    check(function, torch.empty(0, 2))


def test_dynamic_and_decomposed():
    batch = torch.export.Dim("batch")
    for decompose in (False, True):
        check(
            lambda x: (x.lgamma(), x.digamma(), torch.polygamma(1, x), torch.igamma(x, x + 1)),
            torch.rand(3, 2) + 0.5,
            dynamic_shapes=({0: batch},),
            others=[(torch.rand(5, 2) + 0.5,)],
            decompose=decompose,
        )
