"""Differences of arrays: numbers, tolerances by dtype, torch's own error, decades of errors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from coreai_onnx.debugging.difference import (
    DEFAULT_TOLERANCES,
    difference,
    error_decades,
    histogram_rows,
    tolerance_of,
)
from tests.support.tolerances import tolerance


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_equal_arrays() -> None:
    d = difference(f32(1, np.nan, np.inf, -0.0), f32(1, np.nan, np.inf, 0.0))
    assert d.ok
    assert (d.max_abs, d.max_rel, d.ulps, d.mismatched, d.size) == (0, 0, 0, 0, 4)


def test_numbers() -> None:
    d = difference(f32(1.5, 4, 0), f32(1, 4, 0), tolerance=(0.0, 0.25))
    assert (d.max_abs, d.max_rel, d.mismatched, d.size) == (0.5, 0.5, 1, 3)
    assert not d.ok
    assert difference(f32(1.5, 4, 0), f32(1, 4, 0), tolerance=(0.5, 0.0)).ok


def test_an_error_where_zero_is_expected_is_infinitely_large_relatively() -> None:
    assert difference(f32(1e-7), f32(0), tolerance=(0, 1e-6)).max_rel == np.inf


@pytest.mark.parametrize(
    ("dtype", "step"),
    [("float32", 2.0**-23), ("float16", 2.0**-10), ("bfloat16", 2.0**-7), ("float64", 2.0**-52)],
)
def test_one_rounding_is_one_ulp(dtype: str, step: float) -> None:
    expected = np.array([1.0, 0.25], ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    actual = expected.copy()
    actual[0] += expected.dtype.type(step)
    assert difference(actual, expected).ulps == 1.0


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_not_finite_in_one_only_is_a_mismatch_at_any_tolerance(wrong: float) -> None:
    for actual, expected in ((wrong, 1.0), (1.0, wrong), (-np.inf, np.inf)):
        d = difference(f32(actual), f32(expected), tolerance=(1e9, 1e9))
        assert d.mismatched == 1, (actual, expected)


def test_dtypes_and_shapes_have_to_be_equal() -> None:
    d = difference(f32(1).astype(np.float64), f32(1), tolerance=(1.0, 1.0))
    assert not d.ok
    assert d.problem == "is float64[1], expected float32[1]"
    assert (
        difference(f32(1), f32(1)[None], tolerance=(1, 1)).problem
        == "is float32[1], expected float32[1, 1]"
    )


def test_integers_beyond_what_a_double_can_tell_apart() -> None:
    big = np.array([2**53 + 1])
    d = difference(big, big - 1)
    assert not d.ok
    assert (d.max_abs, d.ulps) == (1, 0)
    assert difference(big, big).ok


def test_booleans_complex_and_empty_arrays() -> None:
    d = difference(np.array([True, False]), np.array([True, True]))
    assert (d.mismatched, d.max_abs) == (1, 1)
    c = np.array([1 + 1j], np.complex64)
    assert difference(c + np.complex64(3 + 4j), c).max_abs == 5
    empty = difference(f32(), f32())
    assert empty.ok
    assert empty.size == 0


def test_cosine_and_signal_to_noise() -> None:
    d = difference(f32(1, 0), f32(0, 1))
    assert (d.cosine, d.sqnr) == (0.0, pytest.approx(-3.0103, abs=1e-4))
    equal = difference(f32(3, 4), f32(3, 4))
    assert (equal.cosine, equal.sqnr) == (pytest.approx(1.0), np.inf)
    assert difference(f32(3.03, 4.04), f32(3, 4)).sqnr == pytest.approx(40, abs=0.01)


@pytest.mark.parametrize("dtype", sorted(DEFAULT_TOLERANCES))
def test_the_defaults_are_those_of_torch_and_of_our_tests(dtype: str) -> None:
    from torch.testing._comparison import default_tolerances

    relative, absolute = default_tolerances(getattr(torch, dtype))
    assert DEFAULT_TOLERANCES[dtype] == (relative, absolute)
    assert (tolerance(dtype).rtol, tolerance(dtype).atol) == (relative, absolute)


def test_integers_are_exact() -> None:
    assert tolerance_of("y", "int64", None) == (0.0, 0.0)
    assert tolerance_of("y", "bool", None) == (0.0, 0.0)


def test_an_output_comes_before_its_dtype_before_the_default() -> None:
    chosen = {"y": (1.0, 2.0), "float32": (3.0, 4.0)}
    assert tolerance_of("y", "float32", chosen) == (1.0, 2.0)
    assert tolerance_of("z", "float32", chosen) == (3.0, 4.0)
    assert tolerance_of("z", "float16", chosen) == DEFAULT_TOLERANCES["float16"]
    assert tolerance_of("z", "float16", (5.0, 6.0)) == (5.0, 6.0)


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


# ---------------------------------------------------------------------- by torch's own error
IDEAL = np.linspace(-2, 2, 64)
HALVES = [np.float32, np.float16, ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_is_allowed_and_more_is_not(dtype: type) -> None:
    exact = IDEAL.astype(dtype)
    step = float(ml_dtypes.finfo(dtype).eps)
    assert difference(exact, exact, IDEAL).ok
    assert difference((IDEAL + 2 * step).astype(dtype), exact, IDEAL).ok
    wrong = difference((IDEAL + 200 * step).astype(dtype), exact, IDEAL)
    assert wrong.mismatched == 64
    assert "64 of 64 wrong" in str(wrong)


def test_a_bad_result_of_torch_allows_more() -> None:
    torch_result = (IDEAL + 1e-3).astype(np.float32)
    assert difference((IDEAL - 1e-3).astype(np.float32), torch_result, IDEAL).ok
    assert not difference((IDEAL - 1e-3).astype(np.float32), IDEAL.astype(np.float32), IDEAL).ok


def test_the_lowest_number_of_a_mask_does_not_widen_the_tolerance() -> None:
    lowest = np.finfo(np.float16).min
    right = np.array([lowest, 1.0, 2.0], np.float16)
    wrong = np.array([lowest, 1.0, 2.5], np.float16)
    assert difference(right, right, right.astype(np.float64)).ok
    assert difference(wrong, right, right.astype(np.float64)).mismatched == 1


def test_values_that_are_not_finite() -> None:
    odd = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert difference(odd, odd, odd.astype(np.float64)).ok
    assert difference(np.full(4, np.nan, np.float32), odd, odd.astype(np.float64)).mismatched == 3


def test_integers_are_equal_unless_torch_rounds() -> None:
    torch_result = np.array([1, 2, 3])
    assert difference(np.array([1, 2, 4]), torch_result, np.array([1, 2, 3])).mismatched == 1
    assert difference(np.array([1, 2, 4]), torch_result, np.array([1, 2, 4])).ok


def test_another_type_is_a_problem() -> None:
    array = np.ones(3, np.float32)
    assert "expected float32[3]" in difference(array.astype(np.float64), array, array).problem
    assert not difference(np.ones(4, np.float32), array, array).ok
    assert difference(array[:0], array[:0], array[:0]).ok
