"""Comparisons of single results."""

from __future__ import annotations

import numpy as np

from coreai_onnx.debugging.reference.compared_row import (
    NUMBERS,
    Row,
    badness,
    cells,
    compared_row,
    shape_text,
)

PLACE = (0, "y", "bodies")


def row(actual: object, wanted: object, ideal: object = None, tolerances: object = None) -> Row:
    arrays = [None if x is None else np.asarray(x) for x in (actual, wanted, ideal)]
    return compared_row(PLACE, arrays[1].dtype.name, arrays, tolerances)  # type: ignore[arg-type,union-attr]


def half(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float16)


def test_torchs_own_error_decides_unless_there_are_tolerances() -> None:
    ideal = np.array([1.0004, 2.0])
    arrays = half(1.002, 2), half(1, 2), ideal
    assert row(*arrays).ok
    assert not row(*arrays, tolerances=(0.0, 0.0)).ok
    assert row(*arrays, tolerances=(0.0, 0.01)).ok
    assert not row(half(1.2, 2), *arrays[1:]).ok
    assert row(half(1, 2), half(1, 2)).difference.by_tolerance


def test_nothing_but_nan_is_not_ok() -> None:
    nan = half(np.nan, np.nan)
    found = row(nan, nan, nan.astype(np.float64))
    assert not found.ok
    assert cells(found)[-1].endswith("every element is NaN, in the reference too")  # type: ignore[attr-defined]
    assert row(half(np.nan, 1), half(np.nan, 1), half(np.nan, 1).astype(np.float64)).ok


def test_notes_count_what_is_not_finite_or_saturated() -> None:
    wanted = half(np.nan, 65504, np.inf, 1)
    found = row(wanted, wanted, wanted.astype(np.float64))
    assert found.ok
    assert found.note == "1 NaN in the reference, 2 infinite or the largest number in the reference"
    integers = np.array([2**31 - 1], np.int32)
    assert row(integers, integers, integers).note == ""


def test_cells_have_every_number() -> None:
    found = row(half(1.002, 2), half(1, 2), np.array([1.0004, 2.0]))
    assert len(cells(found)) == len(NUMBERS) + 1
    assert shape_text(found) == "[2]"
    assert cells(found)[-1] == "ok"
    assert cells(row(half(1.5, 2), half(1, 2), np.array([1.0, 2.0])))[-1] == "1 of 2 differ"
    other = row(np.ones(3, np.float32), half(1, 2))
    assert cells(other)[-1] == "is float32[3], expected float16[2]"


def test_the_worst_row_is_wrong_before_it_is_large() -> None:
    wrong = row(half(1.5, 2), half(1, 2), np.array([1.0, 2.0]))
    right = row(half(1.002, 2), half(1, 2), np.array([1.0004, 2.0]))
    assert badness(wrong) > badness(right)
    assert found_max([right, wrong]) is wrong


def found_max(rows: list[Row]) -> Row:
    return max(rows, key=badness)
