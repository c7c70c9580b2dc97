"""The Airy and the spherical Bessel function against torch and digits of mpmath."""

from __future__ import annotations

import pytest
import torch
from torch import special

from tests.lower.checking import check, lower_module, run_model

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
def test_digits(x, digits):
    given = torch.tensor([x], dtype=torch.float64)
    (got,) = run_model(lower_module(special.airy_ai, (given,)), (given,))
    assert abs(float(got[0]) / digits - 1) < 1e-12
