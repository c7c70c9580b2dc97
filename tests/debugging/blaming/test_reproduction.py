"""Folders that reproduce a wrong result."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from coreai_onnx.debugging.blaming.reproduction import write_reproduction
from coreai_onnx.debugging.reference.regions import cut
from coreai_onnx.errors import SaveError
from tests.support.small_models import echo_model


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_inputs_and_torch_s_outputs_are_test_data_of_onnx(tmp_path: Path, dtype: type) -> None:
    known = {"x": np.ones((2, 4), dtype), "y": np.full((2, 4), 3, dtype)}
    name = "bfloat16" if dtype is ml_dtypes.bfloat16 else "float"
    graph = cut(echo_model(name), known)
    folder = write_reproduction(tmp_path / "a" / "b", graph.model, known)
    for file, expected in (("input_0.pb", known["x"]), ("output_0.pb", known["y"])):
        tensor = onnx.load_tensor(str(folder / "test_data_set_0" / file))
        found = onnx.numpy_helper.to_array(tensor)
        assert found.dtype == expected.dtype
        assert (found == expected).all()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SaveError, match="cannot write"):
        write_reproduction(tmp_path / "file", echo_model("float"), {})
