"""The comparison itself: it accepts what it should, and each way of being wrong is caught."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.support.tolerances import (
    EXCEPTIONS,
    Tolerance,
    as_numpy,
    assert_close,
    difference,
    tolerance,
)


@pytest.mark.parametrize(
    ("value", "step"),
    [(np.float64(1), 1e-7), (np.float32(1), 5e-6), (np.float16(1), 1e-3)],
)
def test_within_and_beyond_the_default(value: np.floating, step: float) -> None:
    near = np.asarray([value + value.dtype.type(step)])
    far = np.asarray([value + value.dtype.type(10 * step)])
    assert_close(near, np.asarray([value]))
    with pytest.raises(AssertionError, match="1 of 1"):
        assert_close(far, np.asarray([value]))


def test_dtype_is_compared() -> None:
    with pytest.raises(AssertionError, match="dtype float32, expected float64"):
        assert_close(np.ones(2, np.float32), np.ones(2, np.float64))


def test_shape_is_compared_also_where_numpy_would_broadcast() -> None:
    with pytest.raises(AssertionError, match=r"shape \(1,\), expected \(\)"):
        assert_close(np.ones(1), np.ones(()))


def test_torch_and_numpy_mix() -> None:
    assert_close(np.ones((2, 3), np.float32), torch.ones(2, 3))
    assert_close(torch.ones(2, dtype=torch.int64), np.ones(2, np.int64))


def test_bfloat16_of_both_kinds() -> None:
    expected = torch.tensor([1.0, -2.5, float("nan")], dtype=torch.bfloat16)
    assert as_numpy(expected).dtype == ml_dtypes.bfloat16
    assert_close(np.asarray([1.0, -2.5, np.nan], ml_dtypes.bfloat16), expected)
    with pytest.raises(AssertionError, match="bfloat16"):
        assert_close(np.asarray([1.0, -2.4, np.nan], ml_dtypes.bfloat16), expected)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_exact(dtype: torch.dtype) -> None:
    one = torch.tensor([1.0]).to(dtype)
    assert_close(one, one.clone())
    with pytest.raises(AssertionError, match="1 of 1"):
        assert_close(one, torch.tensor([1.25]).to(dtype))


def test_strided_and_scalar_tensors() -> None:
    value = torch.arange(6.0).reshape(2, 3).T
    assert_close(value, value.numpy())
    assert_close(torch.tensor(2.0), np.float32(2))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite_is_never_close_to_finite(bad: float) -> None:
    with pytest.raises(AssertionError, match="not finite: 1 actual, 0 expected"):
        assert_close(np.asarray([bad, 1.0]), np.asarray([1.0, 1.0]))
    with pytest.raises(AssertionError):
        assert_close(np.asarray([1.0]), np.asarray([bad]))


def test_infinities_agree_only_with_the_same_sign() -> None:
    assert_close(np.asarray([np.inf, -np.inf]), np.asarray([np.inf, -np.inf]))
    with pytest.raises(AssertionError):
        assert_close(np.asarray([np.inf]), np.asarray([-np.inf]))


def test_integers_and_booleans_are_exact() -> None:
    with pytest.raises(AssertionError, match=r"first at \[1\]: .*3.*expected .*2"):
        assert_close(np.asarray([1, 3]), np.asarray([1, 2]))
    with pytest.raises(AssertionError, match="1 of 1 bool"):
        assert_close(torch.tensor(True), torch.tensor(False))


def test_sequences_need_one_length_and_name_the_element() -> None:
    assert_close((np.ones(1), torch.ones(2)), [np.ones(1), torch.ones(2)])
    with pytest.raises(AssertionError, match="1 values, expected 2"):
        assert_close([np.ones(1)], [np.ones(1), np.ones(1)])
    with pytest.raises(AssertionError, match=r"\[1\]: 1 of 1"):
        assert_close([np.ones(1), np.zeros(1)], [np.ones(1), np.ones(1)])
    with pytest.raises(AssertionError, match="the other a sequence"):
        assert_close(np.ones(1), [np.ones(1)])


def test_empty_arrays_are_close() -> None:
    assert_close(np.empty((0, 3)), np.empty((0, 3)))


def test_the_report_names_the_worst_element() -> None:
    report = difference(np.asarray([[1.0, 2.0]]), np.asarray([[1.0, 4.0]]), Tolerance(0.1, 0))
    assert "worst at [0, 1]" in report
    assert "absolute 2" in report
    assert "relative 0.5" in report


def test_an_exception_applies_to_its_dtypes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"float16": Tolerance(0.5, 0.5, "a reason long enough for the rule")}
    monkeypatch.setitem(EXCEPTIONS, "probe", row)
    assert tolerance("float16", "probe").rtol == 0.5
    assert tolerance("float32", "probe") == tolerance("float32")
    assert_close(np.float16([1.2]), np.float16([1]), exception="probe")
    with pytest.raises(KeyError):
        assert_close(np.float16([1.2]), np.float16([1]), exception="no such row")
