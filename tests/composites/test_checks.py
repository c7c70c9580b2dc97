"""Checks of calls: what is known is checked, what is not known is left."""

from __future__ import annotations

from coreai_onnx.composites import checks


def test_a_size_that_is_not_known_fits() -> None:
    assert checks.not_multiple("heads", None, "groups", 3) == ""
    assert checks.not_multiple("heads", 6, "groups", None) == ""
    assert checks.not_multiple("heads", 6, "groups", 4) == "heads is 6, not a multiple of groups, 4"
    assert checks.not_multiple("heads", 6, "groups", 0) != ""


def test_axes_in_range_and_once() -> None:
    dims = {"input": (2, 3)}
    assert checks.axes_outside(dims, [-2, 1]) == ""
    assert checks.axes_outside(dims, [2]) == "axis 2 is out of range for input of rank 2"
    assert checks.axes_outside(dims, [1, -1]) == "axes [1, -1] name one axis twice"
    assert checks.axes_outside({}, [7]) == ""


def test_norms_want_the_last_axes() -> None:
    dims = {"input": (2, 3, 4)}
    assert checks.check_trailing_axes(dims, {"axes": (2, 1)}) == ""
    wrong = checks.check_trailing_axes(dims, {"axes": (0, 2)})
    assert wrong == "axes is [0, 2], not the last ones, [-2, -1]"
    assert checks.negative_axes(dims, {"axes": (2, -2), "eps": 1.0}) == {
        "axes": [-2, -1],
        "eps": 1.0,
    }


def test_without_a_rule_everything_is_right() -> None:
    assert checks.accepts({}, {}) == ""
    assert checks.unchanged({}, {"a": 1}) == {"a": 1}
    assert checks.all_used({"a", "b"}) == set()
    assert checks.rank_below({}, "input", 3) == ""


def test_parameters_have_one_number_per_channel() -> None:
    check = checks.check_channels(2)
    assert check({"input": (2, 3), "scale": (3,)}, {}) == ""
    assert check({"input": (2, None), "scale": (3,)}, {}) == ""
    assert check({"input": (3,)}, {}) == "input has rank 1, at least 2 are needed"
    assert checks.other_channels({"input": (2, 3), "scale": (4,)}) != ""
