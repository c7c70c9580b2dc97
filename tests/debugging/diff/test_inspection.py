"""What inspect prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.debugging.diff.inspection import inspect_model
from coreai_onnx.errors import LoadError
from coreai_onnx.program import OnnxProgram
from tests.support.small_models import layers_model, linear_model


def test_files_with_their_sizes(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    OnnxProgram({"main": linear_model()}).save(path, external_data=True)
    inspection = inspect_model(path)
    assert inspection.files == {path: path.stat().st_size, tmp_path / "m.onnx.data": 2048}
    assert "2.0 KiB" in str(inspection)


def test_a_missing_data_file_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    OnnxProgram({"main": linear_model()}).save(path, external_data=True)
    (tmp_path / "m.onnx.data").unlink()
    inspection = inspect_model(path)
    assert list(inspection.files) == [path, tmp_path / "m.onnx.data"]
    assert ["m.onnx.data", "missing"] in [
        [Path(words[0]).name, *words[1:]]
        for words in map(str.split, str(inspection).splitlines())
        if words
    ]
    assert "MatMul" in str(inspect_model(path))


def test_interface_composites_and_metadata(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = layers_model()
    model.metadata_props["note"] = "n" * 200
    OnnxProgram({"main": model}).save(path)
    lines = [line.split() for line in str(inspect_model(path)).splitlines()]
    assert ["ai.coreai.user::square", "5"] in lines
    assert ["coreai.version", "0.1.0"] in lines
    assert ["note", "n" * 99 + "…"] in lines
    assert ["input", "x", "float32[batch,", "4]"] in lines


def test_several_entrypoints(tmp_path: Path) -> None:
    models = {"a": layers_model(), "b": linear_model()}
    for name, model in models.items():
        model.metadata_props["coreai.entrypoint"] = name
    OnnxProgram(models).save(tmp_path / "m.onnx")
    inspection = inspect_model(tmp_path / "m.onnx")
    assert [path.name for path in inspection.files] == ["m.a.onnx", "m.b.onnx"]
    assert "entrypoint a:" in str(inspection)
    assert "entrypoint b:" in str(inspection)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no such file"):
        inspect_model(tmp_path / "m.onnx")
