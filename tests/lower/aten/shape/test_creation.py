"""Tensors of one value."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.lower.checking import check

X = torch.randn(2, 3)
N = torch.export.Dim("n")

CASES = {
    "full": lambda x: (x + torch.full((2, 3), 1.5), torch.full((), 3), torch.full((2,), True)),
    "full_dtype": lambda x: torch.full((2, 2), 3, dtype=torch.float16),
    "full_large": lambda x: torch.full((100, 200), -1, dtype=torch.int32),
    "full_large_bfloat16": lambda x: torch.full((100, 200), 0.1, dtype=torch.bfloat16),
    "full_like": lambda x: (torch.full_like(x, 2), torch.full_like(x, 2, dtype=torch.bool)),
    "new_full": lambda x: x.new_full((4,), float("inf")),
    "fill": lambda x: (torch.fill(x, 3), torch.fill(x, x.sum())),
    "zeros": lambda x: (torch.zeros(2, 0), torch.zeros_like(x), x.new_zeros(3)),
    "ones": lambda x: (torch.ones(2, 1), torch.ones_like(x, dtype=torch.int8), x.new_ones(())),
    "zero": lambda x: x.clone().zero_(),
    "scalar_tensor": lambda x: torch.scalar_tensor(3, dtype=torch.int64) + x,
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("decompose", [False, True])
def test_values(name: str, decompose: bool) -> None:
    check(CASES[name], X, decompose=decompose)


def test_empty_tensors_have_the_right_sizes() -> None:
    check(
        lambda x: (
            torch.empty(2, 3).fill_(1),
            torch.zeros_like(torch.empty_like(x)),
            torch.zeros_like(x.new_empty(2, 1)),
            torch.zeros_like(torch.empty_strided((2, 3), (1, 2))),
            torch.zeros_like(torch.empty_permuted((2, 3), (1, 0))),
            torch.zeros_like(x.new_empty_strided((2, 3), (1, 2))),
        ),
        X,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_symbolic_sizes(dtype: torch.dtype) -> None:
    check(
        lambda x: (
            torch.full((x.shape[0], 2), 1, dtype=dtype),
            torch.zeros_like(x, dtype=dtype),
            x.new_ones(x.shape[0] * 2, dtype=dtype),
            torch.full((2,), x.shape[0], dtype=dtype),
            torch.scalar_tensor(x.shape[0], dtype=dtype),
        ),
        X,
        dynamic_shapes=({0: N},),
        others=[(torch.randn(5, 3),)],
    )


def test_prims() -> None:
    prims = torch.ops.prims
    options = {"dtype": torch.float32, "device": torch.device("cpu"), "requires_grad": False}
    check(
        lambda x: (
            x + prims.full((2, 3), 4.0, **options),
            prims.full_like(x, 2.0, **options),
            prims.fill(x, 5.0),
            prims.scalar_tensor(2.0, dtype=torch.float64, device=options["device"]),
            torch.zeros_like(prims.empty((2,), **options)),
            torch.zeros_like(prims.empty_strided((2, 3), (3, 1), **options)),
            torch.zeros_like(prims.empty_permuted((2, 3), (0, 1), **options)),
        ),
        X,
    )


@pytest.mark.parametrize("make", [torch.zeros, torch.ones, torch.empty])
def test_complex_tensors_of_symbolic_sizes(make: Callable[..., torch.Tensor]) -> None:
    def made(x: torch.Tensor) -> torch.Tensor:
        tensor = make(x.shape[0], 2, dtype=torch.complex64)
        # what an empty tensor holds may be NaN
        return (torch.zeros_like(tensor) if make is torch.empty else tensor) + x.sum()

    sizes = ({0: torch.export.Dim.DYNAMIC},)
    check(made, torch.randn(3, 2), dynamic_shapes=sizes, others=[(torch.randn(5, 2),)])


def test_complex_numbers_everywhere() -> None:
    def made(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[0]
        zeros, ones = (f(n, 2, dtype=torch.complex64) for f in (torch.zeros, torch.ones))
        like = x.new_zeros((n,), dtype=torch.complex64), x.new_ones((n,), dtype=torch.complex64)
        return (
            zeros,
            ones,
            *like,
            torch.full((n, 1), 1 + 2j),
            x.new_full((n,), 2j, dtype=torch.complex64),
            torch.fft.fft(x).new_full((n,), 2j),
        )

    sizes = ({0: torch.export.Dim.DYNAMIC},)
    check(made, torch.randn(3, 2), dynamic_shapes=sizes, others=[(torch.randn(5, 2),)])
