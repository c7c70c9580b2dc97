"""Safetensors files: other readers read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from safetensors import safe_open

from coreai_onnx.errors import LoadError
from coreai_onnx.model.python.builder.weights import WeightsFile
from coreai_onnx.model.python.weights_file import AbsentTensor, write_weights


def write(path: Path, weights: dict[str, ir.TensorProtocol]) -> WeightsFile:
    with path.open("wb") as file:
        write_weights(file, weights)
    return WeightsFile(path)


def test_safetensors_reads_it(tmp_path: Path) -> None:
    arrays = {"a": np.arange(3, dtype=np.int8), "b": np.eye(3, dtype=np.float32)}
    path = tmp_path / "w.safetensors"
    write(path, {name: ir.Tensor(array) for name, array in arrays.items()})
    with safe_open(path, framework="numpy") as file:
        for name, array in arrays.items():
            np.testing.assert_array_equal(file.get_tensor(name), array)


def test_shared_tensors_are_one(tmp_path: Path) -> None:
    tensor = ir.Tensor(np.arange(1000, dtype=np.float32))
    file = write(tmp_path / "w.safetensors", {"a": tensor, "b": tensor})
    assert (tmp_path / "w.safetensors").stat().st_size < 5000
    assert file.load("b").tobytes() == tensor.tobytes()


def test_absent_tensors_take_no_room_and_cannot_be_read(tmp_path: Path) -> None:
    absent = AbsentTensor("big", ir.DataType.FLOAT, [1 << 28])
    file = write(tmp_path / "w.safetensors", {"big": absent, "x": ir.Tensor(np.ones(2))})
    assert file.load("big").shape == ir.Shape([1 << 28])
    assert (tmp_path / "w.safetensors").stat().st_blocks < 1 << 12
    with pytest.raises(LoadError, match="'big' has no data"):
        absent.numpy()
