"""Weights by name and module; damaged files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.model.python.builder.errors import BuildError
from coreai_onnx.model.python.builder.weights import StoredWeight, Weights, WeightsFile
from coreai_onnx.model.python.weights_file import write_weights


@pytest.fixture
def path(tmp_path: Path) -> Path:
    names = ["layers.0.weight", "layers.0.bias", "layers.10.weight"]
    path = tmp_path / "w.safetensors"
    with path.open("wb") as file:
        write_weights(file, {name: ir.Tensor(np.ones(4, np.float32)) for name in names})
    return path


def test_modules_and_weights(path: Path) -> None:
    weights = Weights(WeightsFile(path))
    layer = weights["layers"]["0"]
    assert isinstance(layer, Weights)
    assert layer["weight"] == weights["layers.0.weight"]
    assert isinstance(layer["weight"], StoredWeight)


@pytest.mark.parametrize("name", ["layers.1", "layers.0.weights", "", "layer"])
def test_a_missing_weight_names_similar_ones(path: Path, name: str) -> None:
    with pytest.raises(
        BuildError, match=r"test_weights.py:\d+: there is no weight .*similar: layers"
    ):
        Weights(WeightsFile(path))[name]


@pytest.mark.parametrize("damage", ["empty", "header", "length", "short", "shape"])
def test_damaged_files(path: Path, damage: str) -> None:
    data = path.read_bytes()
    path.write_bytes(
        {"empty": data[:4], "header": data[:8] + b"{" + data[9:20], "short": data[:-4],
         "length": b"\xff" * 8 + data[8:],
         "shape": data.replace(b"[4]", b"[5]", 1)}[damage]
    )  # fmt: skip
    with pytest.raises(BuildError, match=r"w\.safetensors"):
        read_all(path)


def read_all(path: Path) -> None:
    file = WeightsFile(path)
    for name in file.index:
        file.load(name)
