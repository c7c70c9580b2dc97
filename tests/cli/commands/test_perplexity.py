"""``coreai-onnx perplexity``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coreai_onnx.cli import main
from coreai_onnx.cli.options.tensors import read_text
from coreai_onnx.errors import CommandError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import perplexity
from tests.support.execution_providers import count_without_arena
from tests.support.huggingface_folders import DOCSTRING_LLAMA, HELD_OUT


def test_the_perplexity_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = export_model(DOCSTRING_LLAMA, tmp_path / "folder", check=False).path
    text = HELD_OUT.read_text()[:900]
    (tmp_path / "text").write_text(text)
    capsys.readouterr()
    command = ["perplexity", str(folder), str(tmp_path / "text")]
    assert main(command) == 0
    assert capsys.readouterr().out == f"{perplexity(folder, text):.4f}\n"
    assert main([*command, "--window", "64", "--stride", "16"]) == 0
    assert capsys.readouterr().out == f"{perplexity(folder, text, window=64, stride=16):.4f}\n"
    opened = count_without_arena(monkeypatch)
    assert main([*command, "--provider", "cpu", "--provider-option", "use_arena=0"]) == 0
    assert len(opened) == 1
    assert main([*command, "--provider", "tpu"]) == 2
    assert "error: tpu is not available" in capsys.readouterr().err
    assert main([*command[:2], str(tmp_path / "nothing")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_what_is_no_text(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CommandError, match=r"cannot read .*pipe: is not a regular file"):
        read_text(tmp_path / "pipe")
    with pytest.raises(CommandError, match="cannot read /dev/zero: is not a regular file"):
        read_text(Path("/dev/zero"))
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(CommandError, match=r"cannot read .*bytes: "):
        read_text(tmp_path / "bytes")
