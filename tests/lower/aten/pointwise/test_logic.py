"""Logic, bits, shifts and divisors against torch."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check

SIGNED = [torch.int64, torch.int32, torch.int16, torch.int8]
INTEGERS = [*SIGNED, torch.uint8]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def ends(dtype: torch.dtype) -> torch.Tensor:
    """Numbers of an integer dtype, its ends among them."""
    info = torch.iinfo(dtype)
    return torch.tensor([info.min, info.max, 0, 1, 5, info.max - 1, 7, 0, 100], dtype=dtype)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, torch.bool], ids=str)
def test_logical(dtype):
    values = torch.tensor([0.0, -0.0, 0.5, 2.0, float("nan"), float("inf")])
    values = values if dtype.is_floating_point else torch.tensor([0, 1, 2, 100])
    a = values.to(dtype).repeat_interleave(len(values))
    b = values.to(dtype).repeat(len(values))
    check(
        lambda a, b: (
            torch.logical_and(a, b),
            torch.logical_or(a, b),
            torch.logical_xor(a, b),
            torch.logical_not(a),
        ),
        a,
        b,
    )


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool], ids=str)
def test_bitwise(dtype):
    a = torch.tensor([True, True, False, False]) if dtype == torch.bool else ends(dtype)
    b = a.flip(0)
    check(lambda a, b: (a & b, a | b, a ^ b, ~a), a, b)
    check(lambda a: (a & 1, a | 2, a ^ 3), a)


def test_mixed_dtypes():
    check(lambda a, b: a & b, torch.tensor([1, 3], dtype=torch.int8), torch.tensor([True, False]))
    check(lambda a: a | 2, torch.tensor([True, False]))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("amount", [0, 1, 3, 7])
def test_shift_by_a_number(dtype, amount):
    check(lambda x: (x << amount, x >> amount), ends(dtype))


@pytest.mark.parametrize("dtype", SIGNED, ids=str)
def test_shift_by_too_much(dtype):
    bits = torch.iinfo(dtype).bits
    check(lambda x: (x << bits, x >> bits, x >> (bits - 1), x << (bits - 1)), ends(dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shift_by_tensors(dtype):
    amounts = torch.tensor([0, 1, 2, 5, 7, 8, 31, 63, 64])
    x = ends(dtype).repeat_interleave(len(amounts))
    by = amounts.to(dtype).repeat(9)
    check(torch.bitwise_left_shift, x, by)
    check(torch.bitwise_right_shift, x, by)
    if dtype.is_signed:
        check(torch.bitwise_right_shift, x, -by)
        check(torch.bitwise_left_shift, x, -by)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_divisors(dtype):
    a = torch.tensor([0, 1, 6, 12, 100, 48, 17]).to(dtype)
    a = torch.cat([a, a.neg()]) if dtype.is_signed else a
    x, y = a.repeat_interleave(len(a)), a.repeat(len(a))
    check(torch.gcd, x, y)
    check(torch.lcm, x, y)


def test_divisors_broadcast_and_empty():
    batch = torch.export.Dim("batch")
    check(
        torch.gcd,
        torch.tensor([[12], [18]]),
        torch.tensor([8, 27, 30]),
        dynamic_shapes=({0: batch}, None),
        others=[(torch.tensor([[5], [10], [15]]), torch.tensor([10, 4, 25]))],
    )
    check(torch.lcm, torch.empty(0, dtype=torch.int64), torch.tensor([3]))


def test_decomposed():
    a = ends(torch.int64)
    check(lambda a: (a << 2, a >> 2, torch.gcd(a, a.flip(0)), a & 3), a, decompose=True)
