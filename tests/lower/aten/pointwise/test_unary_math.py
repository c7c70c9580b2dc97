"""Signs, rounding, exponentials and logarithms against torch."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
NAN, INF = float("nan"), float("inf")
VALUES = [NAN, INF, -INF, 0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1e-4, -1e-4, 3.3, -7.8, 10.0]
FLOATING = "exp exp2 expm1 log log2 log10 log1p sigmoid logit tanh sin cos deg2rad rad2deg".split()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", "abs neg sign sgn ceil floor round trunc frac".split())
def test_rounding_and_signs(name, dtype):
    x = torch.tensor(VALUES, dtype=dtype)
    check(getattr(torch, name), x[3:] if name == "frac" else x)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", "abs neg sign sgn ceil floor round trunc".split())
def test_rounding_and_signs_of_integers(name, dtype):
    info = torch.iinfo(dtype)
    check(getattr(torch, name), torch.tensor([info.min, info.max, 0, 1, 5], dtype=dtype))


@pytest.mark.parametrize("decimals", [0, 1, 3, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_round_at_a_decimal_place(dtype, decimals):
    x = torch.tensor([2.5, 0.5, 1.25, 1.35, 25.0, 15.0, -14.9, 1.0005, 123.4567], dtype=dtype)
    check(lambda x: torch.round(x, decimals=decimals), x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", FLOATING)
def test_functions(name, dtype):
    check(getattr(torch, name), torch.tensor(VALUES, dtype=dtype))
    grid = torch.linspace(-3, 3, 41, dtype=torch.float64).to(dtype)
    if name == "logit" and dtype == torch.float16:  # torch rounds its quotient to float16
        grid = torch.tensor([0.125, 0.25, 0.75, 0.875], dtype=dtype)
    check(getattr(torch, name), grid)


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("name", FLOATING)
def test_functions_of_integers(name, dtype):
    check(getattr(torch, name), torch.tensor([0, 1, 5, 10]).to(dtype))


@pytest.mark.parametrize("name", ["expm1", "log1p"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_digits_near_zero(name, dtype):
    exponents = torch.arange(-30.0, -2.0, dtype=torch.float64)
    x = torch.cat([10**exponents, -(10**exponents)]).to(dtype)
    check(lambda x: getattr(torch, name)(x) / x, x)


def test_whole_logarithms():
    powers = 2.0 ** torch.arange(-20, 60)
    check(lambda x: torch.log2(x).floor(), powers)
    check(lambda x: torch.log10(x).floor(), torch.tensor([10.0, 100.0, 1000.0, 1e6, 0.1]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_pairs(dtype):
    values = torch.tensor([NAN, INF, -INF, 0.0, 1.0, 2.5, -3.0, 30.0], dtype=dtype)
    a, b = values.repeat_interleave(8), values.repeat(8)
    for function in (torch.logaddexp, torch.logaddexp2, torch.xlogy, torch.special.xlog1py):
        check(function, a, b)


def test_pairs_with_numbers():
    x = torch.tensor([0.0, 1.0, 2.0])
    check(lambda x: (torch.xlogy(x, 2.0), torch.xlogy(2.0, x)), x)
    check(lambda x: (torch.special.xlog1py(x, 2.0), torch.special.xlog1py(2.0, x)), x)
    check(torch.xlogy, torch.tensor([0, 1]), torch.tensor([2, 3]))
    check(torch.special.entr, torch.tensor([NAN, -1.0, 0.0, 0.5, 2.0]))
    check(lambda x: torch.logit(x, eps=0.1), x)


def test_dynamic_and_decomposed():
    batch = torch.export.Dim("batch")
    for decompose in (False, True):
        check(
            lambda x: (x.log1p(), x.sign(), x.frac(), x.expm1(), torch.logit(x, 0.1), x.log2()),
            torch.rand(3, 2),
            dynamic_shapes=({0: batch},),
            others=[(torch.rand(5, 2),)],
            decompose=decompose,
        )
