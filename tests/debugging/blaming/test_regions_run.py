"""Tests of runs regions of a graph, and writes one as a reproduction."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from coreai_onnx.debugging.blaming.regions_run import run_all, write_reproduction
from coreai_onnx.debugging.reference.regions import CutGraph, cut
from coreai_onnx.errors import SaveError, SessionError
from tests.support.small_models import echo_model, parse

TEXT = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[2, 3] x) => (float[2, 3] z) { y = Neg(x)  w = Softmax<axis = AXIS>(y)  z = Abs(w) }"""
KNOWN = {name: np.full((2, 3), i, np.float32) for i, name in enumerate("xyzw")}


def test_every_region_has_a_result() -> None:
    graph = cut(parse(TEXT.replace("AXIS", "1")), KNOWN)
    found = run_all(graph, KNOWN, graph.regions, kernels=False)
    assert {name: np.asarray(x).ravel()[0].item() for name, x in found.items()} == {
        "y": 0.0,
        "w": pytest.approx(1 / 3),
        "z": 3.0,
    }


def test_a_broken_region_is_told_from_the_others() -> None:
    graph = cut(parse(TEXT.replace("AXIS", "7")), KNOWN)
    found = run_all(graph, KNOWN, graph.regions, kernels=False)
    assert isinstance(found["w"], str)
    assert "onnxruntime cannot run it" in found["w"]
    assert isinstance(found["y"], np.ndarray)
    with pytest.raises(SessionError):
        run_all(CutGraph(graph.model, ()), KNOWN, (), kernels=False)


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
