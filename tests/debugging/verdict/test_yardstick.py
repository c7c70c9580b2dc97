"""torch's own error as the yardstick."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from coreai_onnx.debugging.verdict.yardstick import judge

IDEAL = np.linspace(-2, 2, 64)
HALVES = [np.float32, np.float16, ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_is_allowed_and_more_is_not(dtype: type) -> None:
    exact = IDEAL.astype(dtype)
    step = float(ml_dtypes.finfo(dtype).eps)
    assert judge(exact, exact, IDEAL).ok
    assert judge((IDEAL + 2 * step).astype(dtype), exact, IDEAL).ok
    wrong = judge((IDEAL + 200 * step).astype(dtype), exact, IDEAL)
    assert wrong.wrong == 64
    assert "64 of 64 wrong" in str(wrong)


def test_a_bad_result_of_torch_allows_more() -> None:
    torch_result = (IDEAL + 1e-3).astype(np.float32)
    assert judge((IDEAL - 1e-3).astype(np.float32), torch_result, IDEAL).ok
    assert not judge((IDEAL - 1e-3).astype(np.float32), IDEAL.astype(np.float32), IDEAL).ok


def test_the_lowest_number_of_a_mask_does_not_widen_the_tolerance() -> None:
    lowest = np.finfo(np.float16).min
    right = np.array([lowest, 1.0, 2.0], np.float16)
    wrong = np.array([lowest, 1.0, 2.5], np.float16)
    assert judge(right, right, right.astype(np.float64)).ok
    assert judge(wrong, right, right.astype(np.float64)).wrong == 1


def test_values_that_are_not_finite() -> None:
    odd = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert judge(odd, odd, odd.astype(np.float64)).ok
    assert judge(np.full(4, np.nan, np.float32), odd, odd.astype(np.float64)).wrong == 3


def test_integers_are_equal_unless_torch_rounds() -> None:
    torch_result = np.array([1, 2, 3])
    assert judge(np.array([1, 2, 4]), torch_result, np.array([1, 2, 3])).wrong == 1
    assert judge(np.array([1, 2, 4]), torch_result, np.array([1, 2, 4])).ok


def test_another_type_is_a_problem() -> None:
    array = np.ones(3, np.float32)
    assert "expected float32[3]" in judge(array.astype(np.float64), array, array).problem
    assert not judge(np.ones(4, np.float32), array, array).ok
    assert judge(array[:0], array[:0], array[:0]).ok
