"""Comparisons, clamping and tests for NaN and infinity against torch."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check, op_types

INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
NAN, INF = float("nan"), float("inf")
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1.0, -2.5]


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of some values; for floating dtypes the special ones."""
    if dtype.is_floating_point:
        values = torch.tensor(SPECIAL, dtype=dtype)
    elif dtype == torch.bool:
        values = torch.tensor([True, False])
    else:
        info = torch.iinfo(dtype)
        values = torch.tensor([info.min, info.max, 0, 1, 5, info.max - 1], dtype=dtype)
    return values.repeat_interleave(len(values)), values.repeat(len(values))


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, torch.bool], ids=str)
@pytest.mark.parametrize(
    "function",
    "eq ne lt le gt ge maximum minimum fmax fmin heaviside isclose".split(),
)
def test_pairs(function, dtype):
    check(getattr(torch, function), *pairs(dtype))


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, torch.bool], ids=str)
@pytest.mark.parametrize("number", [0, 1.5, -1, True])
def test_against_a_number(number, dtype):
    x = pairs(dtype)[1]
    check(lambda x: (x < number, x >= number, x == number, x != number), x)


def test_integers_beyond_float():
    x = torch.tensor([2**53, 2**53 + 1, 2**62 + 1, -(2**53) - 1])
    check(lambda x: (x == 2**53, x > 2**53, x.clamp(-(2**53), 2**62), x.clamp_min(2**53 + 1)), x)
    check(torch.maximum, x, x.flip(0))
    check(lambda x: torch.where(x > 0, x, 7), x)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_clamp_with_numbers(dtype):
    x = pairs(dtype)[1]
    check(
        lambda x: (x.clamp(0, 3), x.clamp_min(2), x.clamp_max(1), x.clamp(3, 1), x.clamp(min=1.5)),
        x,
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_clamp_passes_on_nan(dtype):
    a, b = pairs(dtype)
    check(lambda a, b: torch.clamp(a, b, b + 1), a, b)
    check(lambda a, b: (a.clamp_min(b), a.clamp_max(b)), a, b)
    check(lambda a: (a.clamp(NAN, 1), a.clamp(0, NAN)), a)


def test_clamp_of_booleans_and_promotion():
    x = torch.tensor([True, False])
    check(lambda x: (x.clamp(0, 1), x.clamp_min(1), x.clamp(max=0.5)), x)
    check(lambda x, y: x.clamp(y), torch.tensor([1, 5]), torch.tensor([2.5, 2.5]))
    check(lambda x, y: torch.clamp(x, max=y), x, ~x)
    check(torch.clamp, x, ~x)


def test_clamp_is_one_node():
    assert op_types(check(lambda x: x.clamp(-1, 1), torch.randn(3))) == ["Clip"]


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, torch.bool], ids=str)
def test_kinds_of_numbers(dtype):
    x = pairs(dtype)[1]
    check(
        lambda x: (
            x.isnan(),
            x.isinf(),
            x.isfinite(),
            x.isposinf(),
            x.isneginf(),
            torch.signbit(x),
        ),
        torch.where(x.isnan(), torch.tensor(NAN), x) if dtype == torch.float32 else x,
    )


@pytest.mark.parametrize("dtype", [torch.int64, *FLOATS], ids=str)
def test_nan_to_num(dtype):
    x = pairs(dtype)[1]
    check(lambda x: (x.nan_to_num(), x.nan_to_num(1.0, 2.0), x.nan_to_num(neginf=-5.0)), x)


def test_isclose_options():
    a, b = pairs(torch.float32)
    check(lambda a, b: torch.isclose(a, b, equal_nan=True), a, b)
    check(lambda a, b: torch.isclose(a, b, 0.0, 0.0), a, b)
    check(
        lambda a, b: torch.isclose(a, b, 0.1, 1.0),
        torch.arange(6),
        torch.tensor([0, 2, 5, 3, 3, 3]),
    )


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, torch.bool], ids=str)
def test_where(dtype):
    a, b = pairs(dtype)
    condition = torch.arange(len(a)) % 2 == 0
    check(torch.where, condition, a, b)
    check(lambda c, a: torch.where(c, a, 1), condition, a)
    check(lambda c, a: torch.where(c, 0.5, a), condition, a)


def test_where_with_numbers_only():
    check(lambda c: torch.where(c, 1.0, 2), torch.tensor([True, False]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_copysign(dtype):
    values = torch.tensor([INF, -INF, 0.0, -0.0, 1.0, -2.5], dtype=dtype)
    a, b = values.repeat_interleave(6), values.repeat(6)
    check(lambda a, b: 1 / torch.copysign(a, b), a, b)
    check(lambda a: torch.copysign(a, -2.0), a)


def test_copysign_of_integers():
    check(torch.copysign, torch.tensor([1, -2]), torch.tensor([-3, 4]))


def test_ldexp():
    check(torch.ldexp, torch.tensor([1.5, -2.0, 0.0]), torch.tensor([3, -4, 130]))
    check(torch.ldexp, torch.tensor([1, 2]), torch.tensor([3, -4]))


def test_dynamic():
    batch = torch.export.Dim("batch")
    check(
        lambda x, y: (torch.where(x > y, x, y).clamp(0, 1), x.isfinite(), x.int().isnan()),
        torch.randn(3, 4),
        torch.randn(4),
        dynamic_shapes=({0: batch}, None),
        others=[(torch.randn(5, 4), torch.randn(4))],
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("opset", [18, 26])
def test_opsets(opset, dtype):
    x = torch.tensor(SPECIAL, dtype=dtype)
    check(lambda x: (x.isnan(), x.isinf(), x.clamp(0, 1), x > 0), x, opset=opset)


def test_decomposed():
    a, b = pairs(torch.float32)
    check(
        lambda a, b: (
            torch.isclose(a, b),
            torch.fmax(a, b),
            torch.copysign(a, b),
            torch.heaviside(a, b),
            a.nan_to_num(),
            a.isfinite(),
        ),
        *(torch.where(x.isnan(), torch.zeros(()), x) for x in (a, b)),
        decompose=True,
    )
