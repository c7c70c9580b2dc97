"""Half-quadratic quantization: scales and zero points that ignore outliers; no data needed.

Badri and Shaji 2023, "Half-Quadratic Quantization of Large Machine Learning Models". They minimize
``|W - Q(W)|`` in an l_p norm with p < 1 by turns: errors that are outliers are taken aside, by a
generalized soft threshold, and the grid is fitted to the rest. There the zero points are fitted,
here the scales as well: both steps are least squares with a closed form.
"""

from __future__ import annotations

import numpy as np

from coreai_onnx.quantization.weights.grids import Grid, extreme_grid, representable, whole_zeros
from coreai_onnx.quantization.weights.scheme import Scheme

# The defaults of the authors' package hqq: 20 iterations, lp_norm 0.7, beta 10 and kappa 1.01.
ITERATIONS = 20
NORM = 0.7
"""The p of the norm."""
PENALTY, GROWTH = 10.0, 1.01
"""The weight of the quadratic term, for errors in units of the scale, and its growth per turn."""


def half_quadratic_grid(weight: np.ndarray, scheme: Scheme) -> Grid:
    """Return the grid with the least squared error among those that the iteration visits.

    Args:
        weight: float32 ``[rows, groups, size]``, finite.
        scheme: Bits, symmetry, and the dtype of the scales.
    """
    grid, levels, penalty = extreme_grid(weight, scheme), scheme.levels, PENALTY
    best, least = grid, np.full(grid.scales.shape, np.inf, np.float32)
    for _ in range(ITERATIONS):
        codes = grid.codes(weight, levels)
        error = weight - grid.values(codes)
        # Scales are rounded to float16 and zero points to codes, so that a turn may be worse than
        # the last.
        best, least = _better(best, least, grid, np.square(error).sum(-1))
        target = weight - _outliers(error, grid.scales, penalty)
        grid, penalty = _fitted(target, codes, scheme), penalty * GROWTH
    # The last grid was fitted after the last comparison.
    error = np.square(weight - grid.rounded(weight, levels)).sum(-1)
    return _better(best, least, grid, error)[0]


def _better(
    best: Grid, least: np.ndarray, grid: Grid, error: np.ndarray
) -> tuple[Grid, np.ndarray]:
    """Return for each group the better of two grids, and its error."""
    better = error < least
    scales, zeros = (np.where(better, new, old) for new, old in zip(grid, best, strict=True))
    return Grid(scales, zeros), np.where(better, error, least)


def _outliers(error: np.ndarray, scales: np.ndarray, penalty: float) -> np.ndarray:
    """Return the part of the errors that the threshold of the l_p norm leaves aside."""
    # In units of the scale, one penalty serves groups of all magnitudes.
    units = np.where(scales == 0, np.float32(1), np.abs(scales))[..., None]
    size = np.abs(error) / units
    # The power is negative: of an error of 0 it would be infinite.
    threshold = np.power(np.maximum(size, 1e-6), NORM - 1) / penalty
    outside: np.ndarray = np.sign(error) * np.maximum(size - threshold, 0) * units
    return outside


def _fitted(target: np.ndarray, codes: np.ndarray, scheme: Scheme) -> Grid:
    """Return the grid on which the codes are nearest to the target, by least squares."""
    if scheme.is_symmetric:
        zeros = np.full(codes.shape[:-1], scheme.levels // 2, np.float32)
    else:
        mean, center = codes.mean(-1, keepdims=True), target.mean(-1, keepdims=True)
        slope = _ratio(
            ((codes - mean) * (target - center)).sum(-1), np.square(codes - mean).sum(-1)
        )
        zeros = whole_zeros(slope * mean[..., 0] - center[..., 0], slope, scheme)
    steps = codes - zeros[..., None]
    scales = _ratio((steps * target).sum(-1), np.square(steps).sum(-1))
    return Grid(representable(scales, scheme), zeros)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    ratio: np.ndarray = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return ratio
