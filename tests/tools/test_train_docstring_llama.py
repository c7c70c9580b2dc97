"""The training of the small language model, for two steps on a few files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.support.huggingface_folders import DOCSTRING_LLAMA
from tools import train_docstring_llama as tool

LONG = "A paragraph that is long enough to be taken only once."


def test_long_paragraphs_are_taken_once() -> None:
    seen: set[str] = set()
    assert tool.new_text([f"Held out.\n\n{LONG}"], seen) == f"Held out.\n\n{LONG}"
    again = f"  {LONG.replace(' ', chr(10), 1)}\n\nHeld out."  # with another line break
    assert tool.new_text([again, "New."], seen) == "Held out.\n\nNew."


def test_docstrings_in_order_of_appearance(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text(
        '"""Module."""\ndef f():\n    "F."\nclass C:\n    """C."""\n    def g(): "G."\n'
    )
    assert list(tool.docstrings(file)) == ["Module.", "F.", "C.", "G."]
    file.write_text("print 'Python 2'")
    assert list(tool.docstrings(file)) == []


def test_the_committed_model_is_the_one_of_the_tool() -> None:
    config = json.loads((DOCSTRING_LLAMA / "config.json").read_text())
    assert {name: config[name] for name in tool.CONFIG} == tool.CONFIG
    assert sum(file.stat().st_size for file in DOCSTRING_LLAMA.iterdir()) < 12e6


@pytest.mark.slow
def test_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(f"Return the item {i}." for i in range(2000))
    monkeypatch.setattr(tool, "documents", lambda: ([text, text], LONG))
    monkeypatch.setattr(tool, "BATCH", 2)
    monkeypatch.setattr("sys.argv", ["train", "--steps", "2", "--output", str(tmp_path)])
    tool.main()
    names = {file.name for file in tmp_path.iterdir()}
    committed = {file.name for file in DOCSTRING_LLAMA.iterdir()} - {"README.md"}
    assert names == committed
    assert torch.get_num_threads() == 1
