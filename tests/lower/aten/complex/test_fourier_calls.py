"""torch.fft's functions: every kind, dtype, norm and size, static and of any size."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check

X = torch.randn(3, 8, 5, generator=torch.Generator().manual_seed(0))
Z = torch.complex(X, X.flip(1))
ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
OF_COMPLEX = ("fft", "ifft", "irfft", "hfft")
AUTO = dict.fromkeys(range(3), torch.export.Dim.AUTO)


def function(name: str):
    return getattr(torch.fft, name)


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("size", [None, 4, 5, 12])
def test_sizes_are_cut_and_continued(name: str, size: int | None) -> None:
    check(lambda x: function(name)(x, size, dim=1), X)


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_norms_of_several_axes(name: str, norm: str) -> None:
    check(lambda x: function(f"{name}2")(x, norm=norm), X)
    check(lambda x: function(f"{name}n")(x, (4, 6), norm=norm), X)


@pytest.mark.parametrize("name", OF_COMPLEX)
def test_complex_inputs(name: str) -> None:
    check(lambda z: function(name)(z, dim=0), Z)
    check(lambda z: function(f"{name}n")(z, dim=(2, 0)), Z)


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_integers_of_any_size(name: str, dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (3, 6, 5)).to(dtype)
    others = [(torch.randint(0, 2, shape).to(dtype),) for shape in ((1, 3, 4), (4, 9, 8))]
    check(function(name), x, dynamic_shapes=(AUTO,), others=others)
    check(function(f"{name}2"), x, dynamic_shapes=(AUTO,), others=others)


def test_a_size_that_cuts_or_continues_at_run_time() -> None:
    others = [(torch.randn(2, 3, 9),), (torch.randn(1, 3, 2),)]
    check(lambda x: torch.fft.rfft(x, 6), X, dynamic_shapes=(AUTO,), others=others)
