"""``coreai-onnx inspect``."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.cli import main
from coreai_onnx.debugging.diff.inspection import histogram, inspect_model
from coreai_onnx.debugging.diff.provider_gaps import provider_gaps
from coreai_onnx.program import OnnxProgram
from tests.support.small_models import layers_model


def test_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    OnnxProgram({"main": layers_model()}).save(path)
    assert main(["inspect", str(path)]) == 0
    assert capsys.readouterr().out == f"{inspect_model(path)}\n"


def test_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "nowhere.onnx"]) == 2
    assert capsys.readouterr().err == "error: nowhere.onnx: no such file\n"


def test_histograms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    OnnxProgram({"main": layers_model()}).save(path)
    assert main(["inspect", str(path), "--histogram"]) == 0
    assert capsys.readouterr().out == f"{histogram([path])}\n"
    assert main(["inspect", str(path), "--histogram", str(path)]) == 0
    assert capsys.readouterr().out == f"{histogram([path, path])}\n"


def test_a_provider(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    OnnxProgram({"main": layers_model()}).save(path)
    assert main(["inspect", str(path), "--provider", "webgpu"]) == 0
    assert capsys.readouterr().out == f"{provider_gaps(path, 'webgpu')}\n"
    assert main(["inspect", str(path), "--provider", "gpu"]) == 2
    assert capsys.readouterr().err.startswith("error: gpu is not available in onnxruntime")
