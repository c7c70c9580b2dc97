"""Complex numbers: made, taken apart, arithmetic with reals and numbers, functions, products."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.lower.checking import check

_SEED = torch.Generator().manual_seed(0)
Z = torch.randn(3, 4, dtype=torch.complex64, generator=_SEED)
W = torch.randn(4, dtype=torch.complex64, generator=_SEED)
X = torch.randn(3, 4, generator=_SEED)


@pytest.mark.parametrize(
    "function",
    [
        lambda z: z.real + z.imag,
        lambda z: torch.view_as_complex(torch.view_as_real(z) * 2),
        lambda z: torch.complex(z.real, z.imag[0]),
        lambda z: torch.polar(z.abs(), z.angle()),
        lambda z: z.conj().resolve_conj(),
        lambda z: z.mH,
        lambda z: (-z).sgn(),
        lambda z: z * 2 + 1,
        lambda z: (1 - z) / 3,
        lambda z: z * (1 + 2j) - 3j,
        lambda z: torch.add(z, z, alpha=2j),
        lambda z: z.reciprocal(),
        lambda z: z.square(),
        lambda z: z.exp(),
        lambda z: z.log(),
        lambda z: z.sqrt(),
        lambda z: z.sum() + z.mean(1, keepdim=True),
        lambda z: z.cumsum(0),
        lambda z: z == z.conj(),
        lambda z: z.to(torch.complex128),
        lambda z: z * torch.full((4,), 1 + 1j),
    ],
)
def test_of_one_tensor(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    check(function, Z)


@pytest.mark.parametrize(
    "function",
    [torch.add, torch.sub, torch.mul, torch.div, lambda z, w: torch.where(z.real > 0, z, w)],
)
def test_of_two_tensors(function: Callable[..., torch.Tensor]) -> None:
    check(function, Z, W)
    check(function, Z, W.real.contiguous())
    check(function, Z, Z.flip(0))


def test_real_tensors_become_complex() -> None:
    check(lambda x: x * 1j, X)
    check(lambda x: x.to(torch.complex64).exp(), X)


def test_matrix_products() -> None:
    check(lambda z, w: z @ w, Z, W)
    check(lambda z: z @ z.T.contiguous(), Z)
    check(lambda z, x: z @ x.to(torch.complex64).mT, Z, X)
    check(lambda w: torch.vdot(w, w * 1j), W)


def test_large_and_small_do_not_overflow() -> None:
    check(lambda z: z.abs(), Z * 1e30)
    check(lambda z: (z / z.flip(0)).abs(), Z * 1e25)


def test_any_batch() -> None:
    shapes = ({0: torch.export.Dim("n")}, {})
    check(lambda z, w: (z * w).abs(), Z, W, dynamic_shapes=shapes, others=[(Z[:2], W)])
