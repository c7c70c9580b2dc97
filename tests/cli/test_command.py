"""The command as a whole: help, errors, exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coreai_onnx.cli import inspect_file, main


@pytest.mark.parametrize("command", ["convert", "run", "compare", "inspect", "ops-path"])
def test_help_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_of_overview:
        main(["--help"])
    overview = capsys.readouterr().out
    assert exit_of_overview.value.code == 0
    assert f"\n    {command} " in overview
    with pytest.raises(SystemExit) as exit_of_help:
        main([command, "--help"])
    assert exit_of_help.value.code == 0
    text = capsys.readouterr().out
    assert "--debug" in text
    assert command == "ops-path" or f"  coreai-onnx {command} " in text  # an example


@pytest.mark.parametrize("words", [[], ["translate"], ["run"], ["convert", "a:b"]])
def test_wrong_words_are_told_with_the_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage: coreai-onnx" in capsys.readouterr().err


def test_an_error_of_ours_is_one_message_without_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["inspect", "nowhere.onnx"]) == 2
    assert capsys.readouterr().err == "error: nowhere.onnx: no such file\n"


def test_an_unexpected_error_names_its_type_and_the_way_to_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(path: str) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(inspect_file, "inspect_model", failing)
    assert main(["inspect", "m.onnx"]) == 2
    assert capsys.readouterr().err == (
        "error: ZeroDivisionError: by zero\n(--debug shows the traceback)\n"
    )
    with pytest.raises(ZeroDivisionError):
        main(["inspect", "m.onnx", "--debug"])


def test_an_interrupt_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect_file, "inspect_model", interrupted)
    assert main(["inspect", "m.onnx"]) == 130


def test_python_m(repo: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "coreai_onnx", "inspect", "nowhere.onnx"],
        cwd=repo, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr == "error: nowhere.onnx: no such file\n"
    assert result.stdout == ""
