"""Files of a written package."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx import OnnxProgram
from coreai_onnx.debugging.diff.model_diff import diff_models
from coreai_onnx.model.python.builder.saving import command
from coreai_onnx.model.python.package import imported
from tests.support.small_models import linear_model


@pytest.mark.parametrize("options", [[], ["--external-data"]])
def test_the_command_writes_the_model(options: list[str], tmp_path: Path) -> None:
    program = OnnxProgram({"main": linear_model(64, 64)})
    target = tmp_path / "again.onnx"
    with imported(program.to_python(tmp_path / "written")) as package:
        assert command(package.MODELS, ["build", str(target), *options]) == 0
    assert target.with_name("again.onnx.data").exists() == bool(options)
    assert diff_models(program, target).same


def test_a_fault_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = OnnxProgram({"main": linear_model()})
    with imported(program.to_python(tmp_path / "written")) as package:
        assert command(package.MODELS, ["build", str(tmp_path / "no" / "again.onnx")]) == 2
    assert capsys.readouterr().err.startswith("error: ")
