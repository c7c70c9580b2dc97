"""Errors by their order of magnitude."""

from __future__ import annotations

import numpy as np

from coreai_onnx.debugging.verdict.error_histogram import error_decades, histogram_rows


def test_decades() -> None:
    expected = np.zeros(6)
    actual = np.array([0.0, 2e-6, 9e-6, 0.5, np.nan, -1e-5])
    assert error_decades(actual, expected) == {
        "not finite": 1,
        "1e-1": 1,
        "1e-5": 1,
        "1e-6": 2,
        "0": 1,
    }


def test_arrays_that_are_equal_or_have_other_shapes() -> None:
    infinite = np.array([np.inf, 1.0], np.float16)
    assert error_decades(infinite, infinite) == {"0": 2}
    assert error_decades(infinite, np.ones((2, 1))) == {}
    assert error_decades(np.ones(0), np.ones(0)) == {}


def test_complex_errors_are_distances() -> None:
    assert error_decades(np.array([3 + 4j]), np.array([0j])) == {"1e0": 1}


def test_bars_are_relative_to_the_largest() -> None:
    assert histogram_rows({"1e-1": 1, "0": 40}) == [("1e-1", 1, "█"), ("0", 40, "█" * 40)]
