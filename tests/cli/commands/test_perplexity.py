"""``coreai-onnx perplexity``."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.cli import main
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import perplexity
from tests.support.huggingface_folders import DOCSTRING_LLAMA, HELD_OUT


def test_the_perplexity_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = export_model(DOCSTRING_LLAMA, tmp_path / "folder", check=False).path
    text = HELD_OUT.read_text()[:900]
    (tmp_path / "text").write_text(text)
    capsys.readouterr()
    command = ["perplexity", str(folder), str(tmp_path / "text")]
    assert main(command) == 0
    assert capsys.readouterr().out == f"{perplexity(folder, text):.4f}\n"
    assert main([*command, "--window", "64", "--stride", "16"]) == 0
    assert capsys.readouterr().out == f"{perplexity(folder, text, window=64, stride=16):.4f}\n"
    assert main([*command[:2], str(tmp_path / "nothing")]) == 2
    assert "cannot read" in capsys.readouterr().err
