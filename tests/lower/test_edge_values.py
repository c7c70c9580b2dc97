"""Values at the edges: one table of operators per kind of edge, all of a kind in one model.

Outputs named with ``signed`` also give their sign bit, which tells -0.0 from 0.0.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.lower.checking import check

Function = Callable[..., Tensor]
INF, NAN = float("inf"), float("nan")
SPECIAL = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.5, -2.5, 1e-30, -88.0])


def all_of(functions: list[Function]) -> Callable[..., tuple[Tensor, ...]]:
    """Return the results of every function as one model's outputs."""
    return lambda *args: tuple(function(*args) for function in functions)


def signed(function: Function) -> Function:
    return lambda *args: torch.signbit(function(*args))


UNARY: list[Function] = [
    torch.abs, torch.neg, torch.sign, torch.sgn, torch.exp, torch.exp2, torch.expm1, torch.log,
    torch.log2, torch.log10, torch.log1p, torch.sqrt, torch.rsqrt, torch.reciprocal, torch.square,
    torch.sin, torch.cos, torch.tan, torch.asin, torch.acos, torch.atan, torch.sinh, torch.cosh,
    torch.tanh, torch.asinh, torch.acosh, torch.atanh, torch.sigmoid, torch.erf, torch.erfc,
    torch.floor, torch.ceil, torch.round, torch.trunc, torch.frac, torch.isnan, torch.isinf,
    torch.isfinite, torch.isposinf, torch.isneginf, torch.signbit, torch.nan_to_num, torch.relu,
    torch.logit, torch.sinc, torch.logical_not, torch.i0, torch.digamma, torch.lgamma,
    torch.special.entr, torch.special.erfcx, torch.special.ndtri, torch.special.log_ndtr,
    F.relu6, F.hardtanh, F.hardsigmoid, F.hardswish, F.silu, F.gelu, F.elu, F.celu, F.selu,
    F.mish, F.softplus, F.softsign, F.tanhshrink, F.softshrink, F.hardshrink, F.logsigmoid,
    F.leaky_relu,
]  # fmt: skip
BINARY: list[Function] = [
    torch.add, torch.sub, torch.mul, torch.div, torch.floor_divide, torch.remainder, torch.fmod,
    torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.pow, torch.atan2, torch.hypot,
    torch.copysign, torch.heaviside, torch.logaddexp, torch.logaddexp2, torch.xlogy, torch.eq,
    torch.ne, torch.lt, torch.le, torch.gt, torch.ge, torch.isclose, torch.logical_and,
    torch.logical_or, torch.logical_xor, torch.nextafter,
]  # fmt: skip
REDUCTIONS: list[Function] = [
    torch.sum, torch.prod, torch.mean, torch.amax, torch.amin, torch.max, torch.min, torch.argmax,
    torch.argmin, torch.nansum, torch.nanmean, torch.median, torch.nanmedian, torch.any, torch.all,
    torch.count_nonzero, torch.var, torch.std, torch.norm,
]  # fmt: skip


def test_special_floats_one_by_one() -> None:
    # torch's vector of float32 gives gelu(inf) = nan, its scalar and its float64 give inf
    check(all_of([f for f in UNARY if f is not F.gelu]), SPECIAL)
    check(all_of(UNARY), SPECIAL.double())


def test_pairs_of_special_floats() -> None:
    check(all_of(BINARY), SPECIAL.unsqueeze(0), SPECIAL.unsqueeze(1))


def test_the_sign_of_zero() -> None:
    functions = [torch.neg, torch.round, torch.trunc, torch.ceil, torch.sqrt, torch.sin, F.relu]
    check(all_of([signed(f) for f in functions]), torch.tensor([0.0, -0.0, -0.25, 0.25, -1.0]))
    pair = [signed(f) for f in (torch.mul, torch.copysign, torch.fmod, torch.remainder, torch.add)]
    zeros = torch.tensor([0.0, -0.0])
    check(all_of(pair), zeros.unsqueeze(0), torch.tensor([[2.0], [-2.0]]))


@pytest.mark.parametrize("place", [0, 2, 4])
def test_rows_with_a_special_value(place: int) -> None:
    x = torch.arange(10.0).reshape(2, 5)
    x[0, place], x[1, place] = NAN, -INF
    functions: list[Function] = [
        lambda x, f=f: f(x, dim=1)  # type: ignore[misc]
        for f in (torch.sum, torch.amax, torch.amin, torch.argmax, torch.argmin, torch.cumsum,
                  torch.cumprod, torch.logsumexp, torch.softmax, torch.log_softmax, torch.nansum)
    ]  # fmt: skip
    functions += [lambda x: torch.max(x, 1)[1], lambda x: torch.cummax(x, 1)[0]]
    functions += [lambda x: torch.sort(x, 1)[1], lambda x: torch.median(x, 1)[0]]
    check(all_of(functions), x)


# ---------------------------------------------------------------------- shapes
def test_nothing_at_all() -> None:
    empty = torch.zeros(0, 3)
    check(all_of(UNARY), empty)
    check(all_of(BINARY), empty, torch.ones(3))
    sums = [torch.sum, torch.prod, torch.mean, torch.any, torch.all, torch.nansum]
    check(all_of([*sums, lambda x: x.sum(0), lambda x: x.prod(1), lambda x: x.mean(1)]), empty)
    check(lambda x: (x @ x.T, x.T @ x, torch.cat([x, x]), x.reshape(3, 0), x.flip(0)), empty)
    check(lambda x: (torch.sort(x, 0), torch.cumsum(x, 0), torch.nonzero(x), x.unique()), empty)


def test_no_axes() -> None:
    for x in (torch.tensor(2.5), torch.tensor(-0.0)):
        check(all_of([f for f in REDUCTIONS if f not in (torch.var, torch.std)]), x)
        rows = [lambda x: torch.sort(x)[1], lambda x: torch.topk(x, 1)[1], torch.nonzero]
        rows += [lambda x: torch.cumsum(x, 0), lambda x: x.flip(0), lambda x: x.squeeze(0)]
        rows += [lambda x: torch.softmax(x, -1), lambda x: x.expand(2, 3), torch.atleast_2d]
        check(all_of(rows), x)


def test_axes_of_one() -> None:
    x = torch.randn(1, 3, 1)
    check(all_of(REDUCTIONS), x)
    check(
        lambda x: (x.squeeze(), x.squeeze(0), x.squeeze(1), x.expand(2, -1, 4), x * x.mT, x.mT @ x),
        x,
    )
    check(lambda x: (torch.var(x, 1), x.std(0, correction=0), x.softmax(0), x.repeat(2, 1, 1)), x)


@pytest.mark.parametrize("value", [True, 3, 0, -1.5, 0.0])
def test_nonzero_of_a_number(value: float) -> None:
    check(torch.nonzero, torch.tensor(value))


def test_negative_indices_and_steps() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    check(
        lambda x: (
            x[-1], x[:, -2:], x[..., -3:-1], x[:, :-5], x[:, 5:], x[-9:9:2], x[:, ::2, 1::3],
            x.select(-1, -2), x.narrow(-1, -3, 2), x.flip(-1), x.roll(-1, -2), x.transpose(-1, -3),
            x.unbind(-2)[-1], x.split(3, -1)[-1], x.diagonal(-1, -2, -1), x.tril(-1), x.triu(-2),
        ),
        x,
    )  # fmt: skip
    index = torch.tensor([-1, 0, -2])
    check(lambda x, i: (x[:, i], x[:, :, i], x[:, i, i], x[i // 2, :, i]), x, index)


# ---------------------------------------------------------------------- integers
SIGNED = (torch.int8, torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", SIGNED)
def test_division_of_negative_integers(dtype: torch.dtype) -> None:
    a = torch.tensor([7, -7, 6, -6, 0, 1, -1], dtype=dtype).unsqueeze(1)
    b = torch.tensor([2, -2, 3, -3, 7], dtype=dtype)
    modes = [lambda a, b, m=m: torch.div(a, b, rounding_mode=m) for m in (None, "floor", "trunc")]
    check(all_of([*modes, torch.remainder, torch.fmod, torch.floor_divide]), a, b)
    check(lambda a: (a // -2, a % -3, -7 % a.clamp_min(1), torch.fmod(a, -4)), a)


@pytest.mark.parametrize("dtype", [torch.uint8, *SIGNED])
def test_integers_wrap_around(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    x = torch.tensor([info.max, info.max - 1, info.min, info.min + 1, 3], dtype=dtype)
    check(lambda x: (x + 1, x - 2, x * 3, -x, x + x, x * x, x.abs(), x << 1, ~x), x)
    check(lambda x: (x.cumsum(0, dtype=x.dtype), x.sum(dtype=x.dtype), x.prod(dtype=x.dtype)), x)


def test_casts_between_integers_wrap_around() -> None:
    wide = torch.tensor([300, -1, 2**31, -(2**31) - 1, 2**40 + 5])
    check(
        lambda x: tuple(x.to(d) for d in (torch.uint8, torch.int8, torch.int16, torch.int32)), wide
    )


def test_large_integers_keep_every_digit() -> None:
    x = torch.tensor([2**53 + 1, -(2**53) - 1, 2**62 + 3])
    check(lambda x: (x + 1, x.clamp(min=-5), torch.maximum(x, x - 1), x.sum(), x.abs(), x // 3), x)
    check(lambda x: (x.sort()[0], x.topk(2)[0], x.max(), x.cumsum(0), torch.where(x > 0, x, -x)), x)


# ---------------------------------------------------------------------- promotion, ties, rounding
def test_booleans_are_promoted() -> None:
    a, b = torch.tensor([True, False, True]), torch.tensor([True, True, False])
    check(
        lambda a, b: (
            a + b, a * b, a + 1, a * 2.5, a + a.long(), a / b.float(), a.sum(), a.prod(), a.mean(
                dtype=torch.float32), a.cumsum(0), a.max(), a ^ b, a & b, ~a, a < b, a.sqrt(),
            torch.where(a, 1, 2.5), torch.maximum(a, b), a.any(), torch.add(a, b),
        ),
        a, b,
    )  # fmt: skip


def test_dtypes_of_pairs() -> None:
    dtypes = (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16)
    tensors = [torch.tensor([1, 0, 1]).to(d) for d in (*dtypes, torch.float32, torch.float64)]
    check(lambda *ts: tuple(a + b for a in ts for b in ts if a is not b), *tensors)
    check(lambda *ts: tuple(t + 1 for t in ts) + tuple(t * 1.5 for t in ts), *tensors)


def test_of_equal_elements_the_first_are_taken() -> None:
    x = torch.tensor([[2.0, 1.0, 2.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    check(lambda x: (x.argmax(1), x.argmin(1), x.max(1)[1], x.min(1)[1], x.sort(1)[1]), x)
    check(lambda x: (x.sort(1, descending=True)[1], x.mode(1)[0], x.median(1)[1]), x)
    check(lambda x: (torch.topk(x, 2)[0], torch.topk(x, 3, sorted=False)[0].sum()), x)
    check(lambda x: torch.topk(x, 3)[0], x.long())  # torch does not say which of equal ones


def test_half_way_is_rounded_to_even() -> None:
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 2.4999998, 8388609.0, -0.25])
    check(lambda x: (x.round(), x.double().round(), x.half().round()), x)
    check(lambda x: (torch.round(x, decimals=1), torch.round(x * 100, decimals=-1)), x)
    check(lambda x: x.to(torch.int32), x)
