"""Powers, roots and lengths against torch."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check, op_types

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.5, NAN])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_to_a_number(dtype, exponent):
    x = torch.tensor([NAN, INF, 0.0, 1.0, 2.0, -1.5, 0.25], dtype=dtype)
    check(lambda x: x**exponent, x)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, 7, 64, 100])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_to_a_number(dtype, exponent):
    values = torch.tensor([0, 1, 2, 3, 7, 100, 127]).to(dtype)
    values = torch.cat([values, -values]) if dtype.is_signed else values
    check(lambda x: x**exponent, values)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8], ids=str)
def test_integer_to_integers(dtype):
    base = torch.tensor([-3, -2, -1, 0, 1, 2, 3, 10]).to(dtype)
    exponent = torch.tensor([0, 1, 2, 5, 40, 63, 100, -1, -2]).to(dtype)
    check(torch.pow, base.repeat_interleave(9), exponent.repeat(8))


def test_integer_powers_are_exact():
    check(torch.pow, torch.tensor([3, 10, 7]), torch.tensor([39, 18, 22]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_to_floats(dtype):
    a = torch.tensor([0.0, 1.0, 2.0, -2.0, NAN, INF], dtype=dtype)
    b = torch.tensor([0.0, 1.0, 3.0, -1.0, 0.5, NAN], dtype=dtype)
    check(torch.pow, a.repeat_interleave(6), b.repeat(6))


def test_mixed():
    check(lambda x: 2**x, torch.tensor([0, 1, 5]))
    check(lambda x: 2.5**x, torch.tensor([0, 1, 5]))
    check(lambda x: 2**x, torch.tensor([0.5, 1.0]))
    check(lambda x: x**2.0, torch.tensor([1, 2]))
    check(lambda x: x**2, torch.tensor([True, False]))
    check(lambda x, y: x**y, torch.tensor([1, 2]), torch.tensor([0.5, 2.0]))
    check(torch.float_power, torch.tensor([1, 2]), torch.tensor([0.5, 2.0]))


def test_square_is_what_norm_fusions_look_for():
    assert op_types(check(lambda x: x.pow(2), torch.randn(3))) == ["Pow"]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_roots(dtype):
    x = torch.tensor([0.0, 1.0, 4.0, 9.5]).to(dtype)
    check(lambda x: (x.sqrt(), x.rsqrt(), x.reciprocal(), x.square()), x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_hypot(dtype):
    large = torch.finfo(dtype).max / 2
    a = torch.tensor([3.0, 0.0, -5.0, large, INF, NAN, NAN, large], dtype=dtype)
    b = torch.tensor([4.0, 0.0, 12.0, large, NAN, 1.0, -INF, 0.0], dtype=dtype)
    check(torch.hypot, a, b)


def test_dynamic_and_decomposed():
    batch = torch.export.Dim("batch")
    for decompose in (False, True):
        check(
            lambda x, n: (x**2, x.abs().sqrt(), n**n, torch.hypot(x, x)),
            torch.randn(3, 2),
            torch.tensor([1, 2]),
            dynamic_shapes=({0: batch}, None),
            others=[(torch.randn(5, 2), torch.tensor([3, 4]))],
            decompose=decompose,
        )
