"""The command as a whole: help, errors, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from coreai_onnx.cli import inspect_file, main
from coreai_onnx.program import OnnxProgram
from tests.small_models import linear_model


@pytest.mark.parametrize(
    "command",
    ["convert", "optimize", "run", "compare", "inspect", "diff", "view", "ops-path"],
)
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


READERS = {
    "inspect": ("inspect", "FILE"),
    "histogram": ("inspect", "FILE", "--histogram"),
    "run": ("run", "FILE"),
    "diff": ("diff", "FILE", "FILE"),
    "optimize": ("optimize", "FILE", "-o", "out.onnx"),
    "compare": ("compare", "FILE", "torch.nn:Identity"),
    "view": ("view", "FILE", "--no-browser"),
}
DAMAGES = {
    "empty": "the file is empty",
    "cut": "is not an ONNX model",
    "newer": "its opset is 99",
    "folder": "is a folder",
    "absent": "no such file",
    "outside": "outside of the model's folder",
    "without data": "which is not there",
    "short data": "cut short",
}


def damaged(folder: Path, damage: str) -> Path:
    path, data = folder / "m.onnx", folder / "m.onnx.data"
    if damage == "absent":
        return path
    if damage == "folder":
        path.mkdir()
        return path
    OnnxProgram({"main": linear_model()}).save(path, external_data="data" in damage)
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "without data":
        data.unlink()
    elif damage == "short data":
        os.truncate(data, 100)
    else:
        proto = onnx.load(path)
        if damage == "newer":
            proto.opset_import[0].version = 99
        else:
            (tensor,) = (t for t in proto.graph.initializer if t.name == "weight")
            (folder.parent / "secret").write_bytes(tensor.raw_data)
            onnx.external_data_helper.set_external_data(tensor, "../secret")
            tensor.ClearField("raw_data")
        path.write_bytes(proto.SerializeToString())
    return path


# A graph is shown without its weights.
CASES = [
    (command, damage)
    for command in READERS
    for damage in DAMAGES
    if not ("data" in damage and command in ("inspect", "histogram", "view"))
]


@pytest.mark.parametrize(("command", "damage"), CASES)
def test_bad_files_are_told_by_every_command(
    command: str,
    damage: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    path = damaged(folder, damage)
    monkeypatch.chdir(tmp_path)
    assert main([str(path) if word == "FILE" else word for word in READERS[command]]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert str(path) in told.err
    assert DAMAGES[damage] in told.err
    assert "raceback" not in told.err
    assert not (tmp_path / "out.onnx").exists()


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
