"""Exponents, mantissas and bits of floating numbers against torch."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_frexp(dtype):
    tiny = torch.finfo(dtype).tiny
    values = [0.0, -0.0, 1.0, -3.0, 0.5, 0.49999, 1e4, tiny, tiny / 8, INF, NAN, 1 / 3]
    check(torch.frexp, torch.tensor(values, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_nextafter(dtype):
    info = torch.finfo(dtype)
    values = [0.0, -0.0, 1.0, -1.0, 1.5, info.tiny, info.tiny / 4, info.max, INF, -INF, NAN, 1e-30]
    x = torch.tensor(values, dtype=dtype)
    a, b = x.repeat_interleave(len(x)), x.repeat(len(x))

    def steps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nextafter(a, b) / torch.where(a == 0, torch.ones_like(a) * info.tiny, a)

    check(steps, a, b)
    check(torch.nextafter, a, b)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (torch.float32, torch.int32),
        (torch.int32, torch.float32),
        (torch.float64, torch.int64),
        (torch.int64, torch.float64),
        (torch.float16, torch.int16),
        (torch.int16, torch.bfloat16),
    ],
    ids=str,
)
@pytest.mark.parametrize("opset", [18, 23, 26])
def test_view_of_floating_bits(source, target, opset):
    floating = source if source.is_floating_point else target
    info = torch.finfo(floating)
    values = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        300.0,
        1e-3,
        info.tiny / 4,
        info.max,
        info.min,
        info.tiny,
        float("inf"),
    ]
    x = torch.tensor(values, dtype=floating)
    check(lambda x: x.view(target), x.view(source), opset=opset)


def test_random_bits_come_back():
    torch.manual_seed(0)
    x = torch.randint(-(2**63), 2**63 - 1, (500,))
    x = x[x.view(torch.float64).isfinite()]
    check(lambda x: x.view(torch.float64).view(torch.int64), x)


def test_dynamic_and_decomposed():
    batch = torch.export.Dim("batch")
    for decompose in (False, True):
        check(
            lambda x: (torch.frexp(x), torch.nextafter(x, x + 1), x.view(torch.int32)),
            torch.randn(3, 2),
            dynamic_shapes=({0: batch},),
            others=[(torch.randn(5, 2),)],
            decompose=decompose,
        )


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([1.5, -2.0, float("inf"), -0.0]),
        torch.tensor([1.5, 3.0], dtype=torch.float16),
        torch.tensor([-7, 2**62, 3]),
        torch.tensor([-1, 4], dtype=torch.int8),
        torch.tensor([True, False, True]),
        torch.tensor(2.5),
    ],
)
def test_the_bits_of_float64_or_int64(x: torch.Tensor) -> None:
    check(torch.hash_tensor, x)


def test_axes() -> None:
    x = torch.randn(2, 3, 4)
    check(lambda x: (torch.hash_tensor(x, (0, 2)), torch.hash_tensor(x, 1, keepdim=True)), x)
