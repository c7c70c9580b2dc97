"""Grids: the scale and the zero point of each group, and rounding to them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coreai_onnx.quantization.weights.scheme import Scheme


class Grid(NamedTuple):
    """The values ``(code - zero) * scale`` that the weights of each group are rounded to.

    Attributes:
        scales: float32 ``[rows, groups]``, exact in the scheme's dtype.
        zeros: float32 ``[rows, groups]``, whole numbers.
    """

    scales: np.ndarray
    zeros: np.ndarray

    def codes(self, weight: np.ndarray, levels: int) -> np.ndarray:
        """Return the nearest codes, float32, for weights ``[rows, groups, size]``."""
        # A group of zeros has the scale 0; any other divisor gives it the code of its zero point.
        scales = np.where(self.scales == 0, np.float32(1), self.scales)[..., None]
        codes: np.ndarray = np.rint(weight / scales + self.zeros[..., None])
        return np.clip(codes, 0, levels - 1, out=codes)

    def values(self, codes: np.ndarray) -> np.ndarray:
        """Return the weights that codes ``[rows, groups, size]`` stand for, float32."""
        values: np.ndarray = (codes - self.zeros[..., None]) * self.scales[..., None]
        return values

    def rounded(self, weight: np.ndarray, levels: int) -> np.ndarray:
        """Return the weights after rounding."""
        return self.values(self.codes(weight, levels))


def extreme_grid(weight: np.ndarray, scheme: Scheme) -> Grid:
    """Return the grid that covers all weights of each group, for round-to-nearest.

    Symmetric: the value of the largest magnitude becomes code 0, and its negative is the code that
    is one too large (as llama.cpp's ``Q4_0``): all ``2 ** bits`` codes are used. Asymmetric: the
    smallest and the largest value, and 0, are on the grid.

    Args:
        weight: float32 ``[rows, groups, size]``, finite.
        scheme: Bits, symmetry, and the dtype of the scales.
    """
    middle = np.float32(scheme.levels // 2)
    if scheme.is_symmetric:
        at = np.abs(weight).argmax(-1, keepdims=True)
        scales = np.take_along_axis(weight, at, -1)[..., 0] / -middle
        return Grid(representable(scales, scheme), np.full_like(scales, middle))
    # The zero point is a code, so that 0 must be between the ends.
    low = np.minimum(weight.min(-1), 0)
    high = np.maximum(weight.max(-1), 0)
    scales = representable((high - low) / np.float32(scheme.levels - 1), scheme)
    # Zero points follow from the scales as stored: rounding both on their own would shift the grid.
    return Grid(scales, whole_zeros(-low, scales, scheme))


def whole_zeros(offset: np.ndarray, scales: np.ndarray, scheme: Scheme) -> np.ndarray:
    """Return the zero points ``offset / scales``, rounded to codes."""
    ratio = np.divide(offset, scales, out=np.zeros_like(offset), where=scales != 0)
    zeros: np.ndarray = np.clip(np.rint(ratio), 0, scheme.levels - 1)
    return zeros


def representable(scales: np.ndarray, scheme: Scheme) -> np.ndarray:
    """Return scales rounded to the dtype in which they are stored, in float32.

    The magnitude is limited to the largest number of the dtype.
    """
    dtype = np.dtype(scheme.scale_dtype)
    limit = np.float32(np.finfo(dtype).max)
    rounded: np.ndarray = np.clip(scales, -limit, limit).astype(dtype).astype(np.float32)
    return rounded
