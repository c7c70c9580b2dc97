"""Palettes: the values of the codes, found by k-means over all groups of a weight.

Han, Mao and Dally 2015, "Deep Compression", section 3: weights share values that one-dimensional
k-means finds. Here each group is first divided by its largest magnitude, as in NF4 (Dettmers et al.
2023, "QLoRA", section 3), so that one palette serves all groups.
"""

from __future__ import annotations

import numpy as np

from coreai_onnx.quantization.weights.grids import representable
from coreai_onnx.quantization.weights.scheme import Scheme

BINS = 1 << 14
"""Bins of the histogram that stands for the weights: a bin is much narrower than a cluster."""
ITERATIONS = 100


class Histogram:
    """Values from -1 to 1 with weights, collected in bins.

    Attributes:
        totals: The sum of the weights of each bin, float64 ``[BINS]``.
    """

    centers = (np.arange(BINS) + 0.5) * (2.0 / BINS) - 1.0

    def __init__(self) -> None:
        """Start empty."""
        self.totals = np.zeros(BINS)

    def add(self, values: np.ndarray, weights: np.ndarray) -> None:
        """Count values of any shape; ``weights`` has that shape."""
        bins = np.clip((values + 1.0) * (BINS / 2), 0, BINS - 1).astype(np.int64)
        self.totals += np.bincount(bins.reshape(-1), weights.reshape(-1), BINS)


def largest_magnitudes(weight: np.ndarray) -> np.ndarray:
    """Return the largest magnitude of each group, ``[rows, groups]``."""
    largest: np.ndarray = np.abs(weight).max(-1)
    return largest


def clusters(histogram: Histogram, count: int) -> np.ndarray:
    """Return the centers of ``count`` clusters in rising order, float32; 0 is one of them.

    Lloyd's iteration from equal shares of the weights. The center nearest to 0 is then set to 0, so
    that pruned weights stay zeros.
    """
    totals, centers = histogram.totals, Histogram.centers
    # With running sums, an iteration costs two look-ups for each cluster instead of a pass over
    # bins.
    mass, moment = (np.concatenate([[0.0], np.cumsum(t)]) for t in (totals, totals * centers))
    # All weights are zeros: any palette serves.
    if mass[-1] == 0:
        return np.linspace(-1, 1, count).astype(np.float32)
    shares = (np.arange(count) + 0.5) / count * mass[-1]
    means = centers[np.minimum(np.searchsorted(mass[1:], shares), BINS - 1)]
    for _ in range(ITERATIONS):
        borders = np.searchsorted(centers, (means[1:] + means[:-1]) / 2)
        edges = np.concatenate([[0], borders, [BINS]])
        weights = np.diff(mass[edges])
        sums = np.diff(moment[edges])
        # A cluster without weights keeps its center.
        new = np.sort(np.divide(sums, weights, out=means.copy(), where=weights > 0))
        # Half a bin: the histogram does not resolve more.
        if np.abs(new - means).max() < 1 / BINS:
            break
        means = new
    means[np.abs(means).argmin()] = 0
    palette: np.ndarray = means.astype(np.float32)
    return palette


def palette_codes(weight: np.ndarray, scales: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """Return the indices of the nearest values ``palette[code] * scale``, uint8.

    Args:
        weight: float32 ``[rows, groups, size]``.
        scales: float32 ``[rows, groups]``.
        palette: float32 ``[levels]``, in rising order.
    """
    units = np.where(scales == 0, np.float32(1), scales)[..., None]
    # Borders of sorted values are their middles: a search instead of a distance to each value.
    return np.searchsorted((palette[1:] + palette[:-1]) / 2, weight / units).astype(np.uint8)


def refit_scales(
    weight: np.ndarray, codes: np.ndarray, scales: np.ndarray, palette: np.ndarray, scheme: Scheme
) -> np.ndarray:
    """Return the scales of least squared error for given codes; others where all codes are 0."""
    values = palette[codes]
    below = np.square(values).sum(-1)
    best = np.divide((values * weight).sum(-1), below, out=scales.copy(), where=below > 0)
    return representable(best, scheme)
