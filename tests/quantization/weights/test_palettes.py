"""Palettes: k-means over a histogram, nearest values, and scales."""

from __future__ import annotations

import numpy as np

from coreai_onnx.quantization.weights.palettes import (
    BINS,
    Histogram,
    clusters,
    largest_magnitudes,
    palette_codes,
    refit_scales,
)
from coreai_onnx.quantization.weights.scheme import Scheme
from tests.quantization.example_weights import grouped


def test_clusters_are_the_values_that_occur() -> None:
    histogram, values = Histogram(), np.array([-0.75, 0.0, 0.25, 1.0])
    for count in (1, 3):
        histogram.add(np.repeat(values, count), np.ones(4 * count))
    assert np.abs(clusters(histogram, 4) - values).max() < 2 / BINS
    assert 0.0 in clusters(histogram, 4)


def test_clusters_beat_equal_steps() -> None:
    histogram = Histogram()
    values = np.clip(np.random.default_rng(0).normal(size=100_000) / 4, -1, 1)
    histogram.add(values, np.ones_like(values))
    palette = clusters(histogram, 16)
    assert (np.diff(palette) > 0).all()
    errors = [
        np.square(values - p[np.abs(values[:, None] - p).argmin(-1)]).mean()
        for p in (palette, np.linspace(-1, 1, 16))
    ]
    assert errors[0] < 0.8 * errors[1]


def test_an_empty_histogram_gives_equal_steps() -> None:
    assert clusters(Histogram(), 4).tolist() == np.linspace(-1, 1, 4, dtype=np.float32).tolist()


def test_codes_are_nearest_and_scales_fit() -> None:
    weight, scheme = grouped(8, 2, 16), Scheme(2, 16, "palette")
    palette = np.array([-1.0, -0.25, 0.0, 0.5], np.float32)
    scales = largest_magnitudes(weight)
    codes = palette_codes(weight, scales, palette)
    distance = np.abs(weight[..., None] - palette * scales[..., None, None])
    chosen = np.take_along_axis(distance, codes[..., None].astype(np.int64), -1)[..., 0]
    assert np.abs(chosen - distance.min(-1)).max() < 1e-6
    fitted = refit_scales(weight, codes, scales, palette, scheme)
    before, after = (
        np.square(weight - palette[codes] * s[..., None]).sum(-1) for s in (scales, fitted)
    )
    assert (after <= before + 1e-6).all()


def test_scales_of_groups_of_zeros_stay() -> None:
    codes, scales = np.full((1, 1, 4), 2, np.uint8), np.array([[3.0]], np.float32)
    palette = np.array([-1, -0.5, 0, 1], np.float32)
    weight = np.zeros((1, 1, 4), np.float32)
    assert refit_scales(weight, codes, scales, palette, Scheme(2, 4)).tolist() == [[3.0]]
