"""Sums, products, quotients and remainders against torch."""

from __future__ import annotations

import operator

import pytest
import torch

from tests.lower.checking import check, op_types

INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
NUMBERS = [-7, -3, -2, -1, 1, 2, 3, 7]


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of some numbers, with both signs and no zero."""
    values = torch.tensor([abs(n) if dtype == torch.uint8 else n for n in NUMBERS]).to(dtype)
    return values.repeat_interleave(8), values.repeat(8)


def wide_pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers at the ends of the dtype."""
    info = torch.iinfo(dtype)
    a = torch.tensor([info.min, info.min, info.max, info.max, info.min + 1, 5], dtype=dtype)
    b = torch.tensor([3, info.max, 3, info.max, 7, info.max], dtype=dtype)
    return a, b


@pytest.mark.parametrize("dtype", INTEGERS + FLOATS, ids=str)
@pytest.mark.parametrize(
    "function",
    [
        torch.add,
        torch.sub,
        torch.mul,
        torch.div,
        torch.floor_divide,
        torch.remainder,
        torch.fmod,
        lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        lambda a, b: torch.add(a, b, alpha=3),
        lambda a, b: torch.sub(a, b, alpha=2),
        lambda a, b: torch.rsub(a, b, alpha=2),
        lambda a, b: torch.addcmul(a, a, b, value=2),
    ],
    ids="add sub mul div floor remainder fmod trunc add3 sub2 rsub2 addcmul".split(),
)
def test_every_dtype(function, dtype):
    check(function, *pairs(dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize(
    "function", [torch.floor_divide, torch.remainder, torch.fmod, torch.add, torch.mul, torch.sub]
)
def test_ends_of_the_integers(function, dtype):
    check(function, *wide_pairs(dtype))


@pytest.mark.parametrize("divisor", [2, 8, 3, -3, 1])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_floor_division_by_a_number(dtype, divisor):
    if dtype == torch.uint8 and divisor < 0:
        divisor = 5
    check(lambda x: (x // divisor, x % divisor), torch.cat([pairs(dtype)[0], wide_pairs(dtype)[0]]))


def test_floor_division_by_a_power_of_two_is_three_nodes():
    model = check(lambda x: x // 2, torch.arange(-4, 5))
    assert op_types(model) == ["Mod", "Sub", "Div"]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("mode", ["floor", "trunc", None])
def test_float_division_at_the_edges(mode, dtype):
    values = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0, -7.0, 0.5]
    a = torch.tensor(values, dtype=dtype).repeat_interleave(8)
    b = torch.tensor(values, dtype=dtype).repeat(8)
    check(lambda a, b: torch.div(a, b, rounding_mode=mode), a, b)
    check(torch.remainder, a, b)
    check(torch.fmod, a, b)


def test_float_floor_division_is_exact():
    check(lambda x: x // 0.1, torch.tensor([1.0, 0.3, -1.0, 0.7]))


def test_true_division_of_integers_is_float():
    check(lambda x, y: x / y, torch.tensor([1, -7]), torch.tensor([3, 2]))
    check(lambda x: x / 3, torch.tensor([1, -7], dtype=torch.int8))
    check(lambda x: x / True, torch.tensor([True]))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: x + 2.5,
        lambda x: x * 2,
        lambda x: x * True,
        lambda x: x + x,
        lambda x: x * x,
        lambda x: x + x.short(),
        lambda x: torch.add(x, x, alpha=False),
        lambda x: 1 - x.int(),
    ],
)
def test_booleans(function):
    check(function, torch.tensor([True, False, True]))


@pytest.mark.parametrize("number", [2, 2.5, True, 300, -1])
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, torch.bool], ids=str)
def test_promotion_with_python_numbers(dtype, number):
    check(lambda x: x * number + number, torch.tensor([1, 0, 3]).to(dtype))


@pytest.mark.parametrize("other", [torch.int8, torch.int64, torch.float16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.float32, torch.bfloat16])
def test_promotion_of_tensors(dtype, other):
    check(lambda a, b: a + b, torch.tensor([1, 2]).to(dtype), torch.tensor([3, 4]).to(other))
    check(lambda a, b: a * b, torch.tensor([1, 2]).to(dtype), torch.tensor(3).to(other))


@pytest.mark.parametrize("function", [operator.add, operator.sub, operator.truediv, operator.mod])
def test_dynamic_broadcast(function):
    batch = torch.export.Dim("batch")
    check(
        function,
        torch.randn(3, 4),
        torch.rand(4) + 1,
        dynamic_shapes=({0: batch}, None),
        others=[(torch.randn(7, 4), torch.rand(4) + 1)],
    )


def test_sizes_as_numbers():
    batch = torch.export.Dim("batch")
    check(
        lambda x: x / x.shape[0] + x.shape[0] * 2,
        torch.randn(3, 4),
        dynamic_shapes=({0: batch},),
        others=[(torch.randn(6, 4),)],
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fused_multiply_and_divide(dtype):
    a, b, c = (torch.rand(3, 5, dtype=torch.float64) + 0.1).to(dtype).unbind()
    check(lambda a, b, c: torch.addcdiv(a, b, c.abs() + 1, value=2), a, b, c)
    check(lambda a, b: torch.lerp(a, b, 0.3), a, b)
    check(torch.lerp, a, b, c)


def test_empty_and_scalar_tensors():
    check(lambda x: (x + 1) // 2 % 3, torch.empty(0, 3, dtype=torch.int64))
    check(lambda x, y: (x - y) / y, torch.tensor(2.0), torch.tensor(3.0))


@pytest.mark.parametrize("opset", [18, 21, 26])
def test_opsets(opset):
    check(
        lambda x, y: (x + y) * 2 // 3 % y, torch.tensor([5, -7]), torch.tensor([2, 3]), opset=opset
    )


def test_decomposed():
    check(
        lambda x, y: (torch.rsub(x, 2), x // y, x % y, torch.addcmul(x, x, y)),
        torch.randn(4),
        torch.randn(4),
        decompose=True,
    )
