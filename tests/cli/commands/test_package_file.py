"""``coreai-onnx package``."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.cli import main
from coreai_onnx.program import OnnxProgram
from tests.support.small_models import linear_model


def test_the_files_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    OnnxProgram({"main": linear_model()}).save(tmp_path / "m.onnx")
    words = ["package", str(tmp_path / "m.onnx"), "--for", "onnxruntime"]
    chosen = ["--variant", "stock", "--variant", "webgpu", "--threads", "2"]
    assert main([*words, "-o", str(tmp_path / "out"), *chosen]) == 0
    lines = capsys.readouterr().out.splitlines()
    wanted = ["manifest.json", "stock/model.onnx", "webgpu/model.onnx"]
    assert [line.split(" (")[0] for line in lines] == [
        f"wrote {tmp_path / 'out' / name}" for name in wanted
    ]
    assert main([*words, "-o", str(tmp_path / "out")]) == 2
    assert "it exists and is not empty" in capsys.readouterr().err
