"""``coreai-onnx to-python``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coreai_onnx.cli import main
from coreai_onnx.program import OnnxProgram
from tests.support.small_models import linear_model


def test_a_file_becomes_a_package_that_builds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], repo: Path
) -> None:
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    OnnxProgram({"main": linear_model()}).save(before)
    assert main(["to-python", str(before), "-o", str(tmp_path / "my_model")]) == 0
    assert "python -m my_model build model.onnx" in capsys.readouterr().out
    command = [sys.executable, "-m", "my_model", "build", str(after)]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""}, check=True)
    assert main(["diff", str(before), str(after)]) == 0


def test_an_error_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    OnnxProgram({"main": linear_model()}).save(tmp_path / "m.onnx")
    assert main(["to-python", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "my-model")]) == 2
    assert "must be a name in Python" in capsys.readouterr().err
