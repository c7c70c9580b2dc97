"""The entry of values and their results."""

from __future__ import annotations

import pytest

from coreai_onnx.model.provenance.value_origins import VALUES, read_origins, values_entry

RESULTS = ["add", "linear", "softmax", "split:0"]


def read(entry: str, *values: str) -> dict[str, str]:
    return read_origins({VALUES: entry}, values, RESULTS)


def test_names_that_are_equal_are_not_stored() -> None:
    assert values_entry({"add": "add", "linear": "linear"}) == ""
    assert values_entry({"add": "add", "output": "softmax"}) == '{"output":"softmax"}'
    assert read("", "add", "bias") == {"add": "add"}


def test_a_name_that_belongs_to_another_value() -> None:
    entry = values_entry({"add_1": "add", "part": "split:0"})
    assert read(entry, "add", "add_1", "part") == {"add_1": "add", "part": "split:0"}


def test_a_result_that_is_two_values() -> None:
    entry = values_entry({"add": "add", "output": "add"})
    assert read(entry, "add", "output") == {"add": "add", "output": "add"}


@pytest.mark.parametrize("entry", ["no", "[1]", "3", "[" * 100_000])
def test_an_entry_of_another_tool_is_ignored(entry: str) -> None:
    assert read(entry, "add", "other") == {"add": "add"}
