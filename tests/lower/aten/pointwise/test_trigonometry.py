"""Circular and hyperbolic functions and their inverses against torch."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
NAN, INF = float("nan"), float("inf")
NAMES = "tan asin acos atan sinh cosh asinh acosh atanh sinc".split()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_functions(name, dtype):
    special = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 1e-4, 1.5], dtype=dtype)
    special = special[3:] if name in ("tan", "sinc") else special
    check(getattr(torch, name), special)
    check(getattr(torch, name), torch.linspace(-5, 5, 41, dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=str)
def test_integers(name, dtype):
    check(getattr(torch, name), torch.tensor([0, 1, 3]).to(dtype))


@pytest.mark.parametrize("name", "asin atan asinh atanh sinh tan".split())
def test_digits_near_zero(name):
    x = 10 ** torch.arange(-30.0, 0.0, dtype=torch.float64)
    check(lambda x: getattr(torch, name)(x) / x, torch.cat([x, -x]))


@pytest.mark.parametrize("name", ["asinh", "acosh", "atan", "sinh"])
def test_large_float64(name):
    check(getattr(torch, name), torch.tensor([1e5, 1e8, 1e20, 1e300, 700.0], dtype=torch.float64))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_atan2(dtype):
    values = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -2.0, 1e-4], dtype=dtype)
    check(torch.atan2, values.repeat_interleave(8), values.repeat(8))


def test_atan2_keeps_the_sign_of_zero():
    check(lambda y, x: 1 / torch.atan2(y, x), torch.tensor([0.0, -0.0]), torch.tensor([1.0, 1.0]))


def test_angle_of_real_numbers():
    check(torch.angle, torch.tensor([NAN, INF, -INF, 0.0, 2.0, -2.0]))
    check(torch.angle, torch.tensor([3, -1]))


def test_dynamic_and_decomposed():
    batch = torch.export.Dim("batch")
    for decompose in (False, True):
        check(
            lambda x: (x.sinc(), torch.atan2(x, x + 1), x.asinh()),
            torch.rand(3, 2),
            dynamic_shapes=({0: batch},),
            others=[(torch.rand(5, 2),)],
            decompose=decompose,
        )
