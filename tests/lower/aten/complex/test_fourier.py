"""Fourier transforms: kinds, axes, norms, odd and even sizes, opsets, short-time transforms."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check

X = torch.randn(3, 8, 5, generator=torch.Generator().manual_seed(0))
Z = torch.complex(X, X.flip(1))


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_transforms_of_complex_tensors(norm: str, opset: int) -> None:
    check(lambda z: torch.fft.fft(z, dim=1, norm=norm), Z, opset=opset)
    check(lambda z: torch.fft.ifftn(z, norm=norm), Z, opset=opset)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("size", [8, 5, 1])
def test_halves_of_real_transforms(norm: str, size: int) -> None:
    x = X.reshape(-1)[: 2 * size].reshape(2, size)
    check(lambda x: torch.fft.rfft(x, norm=norm), x)
    z = torch.fft.rfft(x)
    check(lambda z: torch.fft.irfft(z, n=size, norm=norm), z)


def test_one_axis_and_all_frequencies() -> None:
    check(torch.fft.fft, X[0, :, 0])
    check(lambda x: torch.fft.rfft(x, n=12), X[0, :, 0])
    check(lambda x: torch.fft.hfft(torch.fft.ihfft(x)), X[0, :, 0])


def test_several_axes() -> None:
    check(lambda x: torch.fft.irfft2(torch.fft.rfft2(x, dim=(0, 1)), dim=(0, 1)), X)
    check(lambda x: torch.fft.rfftn(x).abs(), X.double())


def test_any_size() -> None:
    shapes = ({1: torch.export.Dim("n", min=4, max=64)},)
    check(
        lambda x: torch.fft.rfft(torch.fft.fft(x, dim=1).abs(), dim=1, norm="ortho"),
        X,
        dynamic_shapes=shapes,
        others=[(X[:, :7],)],
    )


def test_short_time_transforms() -> None:
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(1))
    window = torch.hann_window(16)

    def back(x: torch.Tensor) -> torch.Tensor:
        z = torch.stft(x, 16, 4, window=window, return_complex=True)
        return torch.istft(z, 16, 4, window=window, length=64)

    check(lambda x: torch.view_as_real(torch.stft(x, 16, window=window, return_complex=True)), x)
    check(back, x)
    check(lambda x: torch.stft(x, 16, return_complex=True).abs(), x[0])
