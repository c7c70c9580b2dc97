"""Functions of an edited model."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.errors import LoadError
from tests.model.python.packages import built

TWO = """
@model.function("test")
def first(x):
    return op.Neg(x), op.Abs(x)

@model.function("test", "SECOND")
def second(x):
    \"\"\"adds both\"\"\"
    a, b = first(x)
    return op.Add(a, b)

@model.graph(outputs={"y": FLOAT["n"]})
def main(x: FLOAT["n"]):
    return second(x)
"""


def test_functions_call_functions(tmp_path: Path) -> None:
    model = built(TWO, tmp_path)
    second = model.functions["test", "SECOND", ""]
    assert second.doc_string == "adds both"
    assert second.opset_imports == {"": 23, "test": 1}
    assert [node.op_type for node in second] == ["first", "Add"]


def test_two_functions_of_one_name_in_the_model(tmp_path: Path) -> None:
    text = TWO.replace('"SECOND"', '"first"')
    with pytest.raises(
        LoadError, match=r"model.py:10: there is a function 'first' already, at model.py:6"
    ):
        built(text, tmp_path)


def test_two_functions_of_one_name_in_the_file(tmp_path: Path) -> None:
    text = TWO.replace("def second", "def first")
    with pytest.raises(
        LoadError, match=r"model.py:11: there is a function 'first' already, in line 7"
    ):
        built(text, tmp_path)


def test_recursion_is_refused(tmp_path: Path) -> None:
    text = TWO.replace("first(x)\n    return", "second(x), x\n    return")
    with pytest.raises(LoadError, match=r"model.py:13: second calls itself|SECOND calls itself"):
        built(text, tmp_path)
