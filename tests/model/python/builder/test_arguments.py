"""Arguments of ``call(...)`` in the structure of the exported function."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coreai_onnx.model.python.builder.arguments import Fields, Fixed, flattened
from coreai_onnx.model.python.builder.errors import CallError

TAKES = {
    "a": {"x": "a_x"},
    "b": ["b_0", ["b_1"]],
    "c": Fields(ids="c_ids", n=Fixed(2)),
    "n": Fixed(3),
    "scale": "scale",
}
C = SimpleNamespace(ids="ids", n=2)
FOUND = {"a_x": "ax", "b_0": "b0", "b_1": "b1", "c_ids": "ids", "scale": "s"}


@pytest.mark.parametrize(
    ("args", "named"),
    [(({"x": "ax"}, ("b0", ["b1"]), C, 3, "s"), {}),
     (({"x": "ax"},), {"scale": "s", "n": 3, "c": C, "b": ["b0", ("b1",)]}),
     (({"x": "ax"}, ("b0", ["b1"]), C), {"scale": "s"})],
    ids=["positions", "names", "fixed is omitted"],
)  # fmt: skip
def test_arguments_are_found(args: tuple[Any, ...], named: dict[str, Any]) -> None:
    assert flattened(TAKES, args, named) == FOUND


def test_states_may_be_given_by_name() -> None:
    assert flattened({"x": "x"}, (1,), {"count": 2}, ["count"]) == {"count": 2, "x": 1}
    assert flattened({"x": "x"}, (1,), {}, ["count"]) == {"x": 1}


GOOD = {"a": {"x": "ax"}, "b": ("b0", ("b1",)), "c": C, "n": 3, "scale": "s"}


@pytest.mark.parametrize(
    ("change", "message"),
    [({"more": 1}, "the model takes no argument 'more'; it takes a, b, c, n, scale"),
     ({"a": {"y": 1}}, "a is a dict of 'y', but the model takes a dict of 'x'"),
     ({"a": 5}, "a is int, but the model takes a dict of 'x'"),
     ({"b": ("b0",)}, "b is a tuple of 1, but the model takes a list or tuple of 2"),
     ({"b": ("b0", "text")}, r"b\[1\] is str, but the model takes a list or tuple of 1"),
     ({"c": 1}, "c is int, but the model takes an object with ids, n"),
     ({"c": SimpleNamespace(ids=1, n=4)}, r"c\.n is 4, but the model was exported for 2; export"),
     ({"n": 4}, "n is 4, but the model was exported for 3; export it again"),
     ({"n": True}, "n is True, but"), ({"n": "3"}, "n is '3', but"), ({"n": [3]}, r"n is \[3\]")],
)  # fmt: skip
def test_others_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CallError, match=message):
        flattened(TAKES, (), GOOD | change)


def test_the_number_of_arguments_is_checked() -> None:
    with pytest.raises(CallError, match="3 arguments are given, but the model takes 2: x, y"):
        flattened({"x": "x", "y": "y"}, (1, 2, 3), {})
    with pytest.raises(CallError, match="missing arguments: y; the model takes x, y"):
        flattened({"x": "x", "y": "y"}, (1,), {})
    with pytest.raises(CallError, match="x is given twice, by position and by name"):
        flattened({"x": "x", "y": "y"}, (1,), {"x": 1})
    with pytest.raises(CallError, match="1 arguments are given, but the model takes 0: nothing"):
        flattened({}, (1,), {})


def test_true_and_false_are_no_numbers() -> None:
    assert flattened({"flag": Fixed(True), "none": Fixed(None)}, (True, None), {}) == {}
    with pytest.raises(CallError, match="flag is 1, but"):
        flattened({"flag": Fixed(True)}, (1,), {})
    with pytest.raises(CallError, match="none is 0, but"):
        flattened({"none": Fixed(None)}, (0,), {})
