"""Operators counted as a reader sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.debugging.diff.histogram import histogram
from coreai_onnx.errors import LoadError
from coreai_onnx.program import OnnxProgram
from tests.support.small_models import layers_model, linear_model


def saved(tmp_path: Path) -> tuple[Path, Path]:
    layers, linear = tmp_path / "layers.onnx", tmp_path / "linear.onnx"
    OnnxProgram({"main": layers_model()}).save(layers)
    OnnxProgram({"main": linear_model()}).save(linear)
    return layers, linear


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_one_file_with_bars(tmp_path: Path) -> None:
    layers, _ = saved(tmp_path)
    found = rows(histogram([layers]))
    assert ["ai.coreai.user::square", "5", "█" * 40] in found
    assert ["Relu", "2", "█" * 16] in found
    assert ["all", "8"] in found


def test_two_files_with_the_difference(tmp_path: Path) -> None:
    found = rows(histogram(saved(tmp_path)))
    assert found[0] == ["operator", "layers.onnx", "linear.onnx", "difference"]
    assert ["ai.coreai.user::square", "5", "0", "-5"] in found
    assert ["MatMul", "0", "1", "1"] in found
    assert ["all", "8", "3", "-5"] in found


def test_neither_one_nor_two(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not 0"):
        histogram([])
    with pytest.raises(LoadError):
        histogram([tmp_path / "nowhere.onnx"])
