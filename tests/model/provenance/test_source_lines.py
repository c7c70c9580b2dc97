"""Tests of source lines of users, and values that are results of the exported program."""

from __future__ import annotations

import pytest
import torch

import coreai_onnx
from coreai_onnx.model.provenance.source_lines import (
    CODE,
    VALUES,
    code_entry,
    read_code,
    read_origins,
    values_entry,
)


def test_lines_come_back() -> None:
    lines = {"a/m.py:41": "y = f(x)", "a/m.py:7": "é\n", "b.py:1": ""}
    assert read_code({CODE: code_entry(lines)}) == lines


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', "null", "[" * 100_000])
def test_other_entries_are_ignored(text: str) -> None:
    assert read_code({CODE: text}) == {}


class Double(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled = x + x
        return doubled.relu()


def test_a_converted_model_has_them_and_none_leaves_them_out() -> None:
    program = coreai_onnx.convert(Double(), (torch.ones(2),))
    assert "doubled = x + x" in read_code(program.model.metadata_props).values()
    program.debug_info = "none"
    assert CODE not in {entry.key for entry in program.to_proto().metadata_props}
    assert CODE in program.model.metadata_props


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
