"""``call(...)`` of a written package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from coreai_onnx import OnnxProgram
from coreai_onnx.source.package import imported
from tests.small_models import counter_model, linear_model, linear_weights
from tests.tolerances import assert_close


def test_call_takes_arrays_in_order(tmp_path: Path) -> None:
    folder = OnnxProgram({"main": linear_model()}).to_python(tmp_path / "written")
    weights = linear_weights()
    x = np.ones((3, 8), np.float32)
    with imported(folder) as package:
        expected = torch.from_numpy(x @ weights["weight"] + weights["bias"])
        assert_close(torch.from_numpy(package.call(x)), expected)


def test_states_are_inputs_and_outputs(tmp_path: Path) -> None:
    folder = OnnxProgram({"main": counter_model()}).to_python(tmp_path / "written")
    one = np.ones(1, np.float32)
    with imported(folder) as package:
        assert [float(item[0]) for item in package.call(one)] == [1.0, 2.0]
        assert [float(item[0]) for item in package.call(one, count=one * 5)] == [5.0, 6.0]
