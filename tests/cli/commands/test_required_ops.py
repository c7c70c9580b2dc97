"""``coreai-onnx required-ops``."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.cli import main
from coreai_onnx.program import OnnxProgram
from tests.support.small_models import layers_model, linear_model


def test_the_list_is_printed_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name, model in (("a", linear_model()), ("b", layers_model())):
        paths.append(str(tmp_path / f"{name}.onnx"))
        OnnxProgram({"main": model}).save(paths[-1])
    assert main(["required-ops", *paths, "--no-types"]) == 0
    printed = capsys.readouterr().out
    assert "\nai.onnx;" in printed
    assert "{" not in printed
    target = tmp_path / "required_operators.config"
    assert main(["required-ops", *paths, "--no-types", "-o", str(target)]) == 0
    assert target.read_text() == printed
    assert "operators of 2 model(s) written" in capsys.readouterr().out


def test_a_library_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    OnnxProgram({"main": linear_model()}).save(tmp_path / "m.onnx")
    words = ["required-ops", str(tmp_path / "m.onnx"), "--library", str(tmp_path / "no.so")]
    assert main(words) == 2
    assert "no such custom op library" in capsys.readouterr().err
