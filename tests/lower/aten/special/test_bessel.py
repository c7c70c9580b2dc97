"""Bessel functions against torch, and against digits of mpmath where torch is less accurate."""

from __future__ import annotations

import pytest
import torch
from torch import special

from tests.lower.checking import check, lower_module, run_model

INF, NAN = float("inf"), float("nan")
FIRST = ["i0", "i0e", "i1", "i1e", "bessel_j0", "bessel_j1"]
SECOND = [
    "bessel_y0",
    "bessel_y1",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
]


@pytest.mark.parametrize("name", FIRST)
def test_first_kind(name):
    grid = torch.linspace(-60, 60, 301)
    check(getattr(special, name), torch.cat([grid, torch.tensor([0.0, -0.0, 1e-6, NAN])]))


@pytest.mark.parametrize("name", SECOND)
def test_second_kind(name):
    grid = torch.linspace(0.05, 60, 301)
    check(getattr(special, name), torch.cat([grid, torch.tensor([0.0, -1.0, 1e-6, NAN])]))


@pytest.mark.parametrize("name", [n for n in FIRST + SECOND if "_j" not in n and "_y" not in n])
def test_float64(name):
    grid = torch.linspace(0.01, 50, 200, dtype=torch.float64)
    check(getattr(special, name), grid)


@pytest.mark.parametrize(
    ("name", "x", "digits"),
    [
        ("bessel_j0", 5.563909774436093, 0.0148507149211765),
        ("bessel_j0", 1e6, 0.000331043013739874),
        ("bessel_j1", 30.0, -0.118751062616623),
        ("bessel_y0", 2.0, 0.510375672649745),
        ("bessel_y1", 5.421052631578947, 0.00293870375634375),
        ("i0", 24.9, 5235629675.80442),
        ("modified_bessel_k1", 0.001, 999.996238156086),
    ],
)
def test_digits(name, x, digits):
    given = torch.tensor([x], dtype=torch.float64)
    (got,) = run_model(lower_module(getattr(special, name), (given,)), (given,))
    assert abs(float(got[0]) / digits - 1) < 3e-10


@pytest.mark.parametrize("name", FIRST + SECOND)
def test_integers_and_empty(name):
    check(getattr(special, name), torch.tensor([1, 2, 30]))
    check(getattr(special, name), torch.empty(0, 2))


def test_dynamic_and_decomposed():
    batch = torch.export.Dim("batch")
    for decompose in (False, True):
        check(
            lambda x: (torch.i0(x), special.i1e(x), special.bessel_j1(x), special.bessel_y0(x)),
            torch.rand(3, 2) + 0.1,
            dynamic_shapes=({0: batch},),
            others=[(torch.rand(5, 2) + 0.1,)],
            decompose=decompose,
        )


INF, NAN = float("inf"), float("nan")


def test_spherical():
    x = torch.tensor([0.0, 1e-4, 0.3, -2.0, 40.0, INF, -INF, NAN])
    check(special.spherical_bessel_j0, x)
    check(special.spherical_bessel_j0, x.double())
    check(special.spherical_bessel_j0, torch.empty(0))


def test_airy():
    check(special.airy_ai, torch.linspace(-2, 15, 60))
    check(special.airy_ai, torch.linspace(-12, -3, 60))
    check(special.airy_ai, torch.tensor([INF, -INF, NAN]))
    check(special.airy_ai, torch.tensor([0, 1, -5]))


@pytest.mark.parametrize(
    ("x", "digits"),
    [
        (-2.5563909774436078, -0.150105423851785),
        (0.0, 0.355028053887817),
        (5.0, 1.08344428136074e-4),
    ],
)
def test_digits_of_airy(x, digits):
    given = torch.tensor([x], dtype=torch.float64)
    (got,) = run_model(lower_module(special.airy_ai, (given,)), (given,))
    assert abs(float(got[0]) / digits - 1) < 1e-12
