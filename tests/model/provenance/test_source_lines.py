"""The user's source lines in the metadata."""

from __future__ import annotations

import pytest
import torch

import coreai_onnx
from coreai_onnx.model.provenance.source_lines import CODE, code_entry, read_code


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
