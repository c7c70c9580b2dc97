"""Packages for servers; `tools/bench/servers.py` has KServe and MLflow read theirs."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coreai_onnx.errors import InputError, SaveError
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.deployment import mlflow_models
from coreai_onnx.runtime.deployment.predictor import run_arrays
from coreai_onnx.runtime.sessions.create import session
from coreai_onnx.scale import log_model, package
from tests.support.small_models import echo_model, linear_model, linear_weights, parse
from tests.support.tolerances import assert_close


@pytest.fixture
def file(tmp_path: Path) -> Path:
    OnnxProgram({"main": linear_model()}).save(tmp_path / "linear.onnx", external_data=True)
    return tmp_path / "linear.onnx"


def test_the_script_for_kserve_has_name_and_settings(file: Path, tmp_path: Path) -> None:
    folder = package(file, tmp_path / "out", "kserve", name="mine", threads=2, kernels=False)
    names = {path.name for path in folder.iterdir()}
    assert names == {"model.onnx", "linear.onnx.data", "server.py"}
    (call,) = (x for x in ast.walk(ast.parse((folder / "server.py").read_text()))
               if isinstance(x, ast.Call) and ast.unparse(x.func) == "serve")  # fmt: skip
    assert ast.literal_eval(call.args[0]) == "mine"
    assert ast.literal_eval(call.keywords[0].value) == {"threads": 2, "kernels": False}


def test_a_dtype_that_the_protocol_lacks(tmp_path: Path) -> None:
    OnnxProgram({"main": echo_model("bfloat16")}).save(tmp_path / "m.onnx")
    with pytest.raises(SaveError, match="KServe's server has no type for x: bfloat16"):
        package(tmp_path / "m.onnx", tmp_path / "out", "kserve")
    assert not (tmp_path / "out").exists()


def test_without_mlflow(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    message = r"mlflow is not installed: pip install coreai-onnx-bridge\[mlflow\]"
    with pytest.raises(SaveError, match=message):
        package(file, tmp_path / "out", "mlflow")
    with pytest.raises(SaveError, match=message):
        log_model(file, "linear")
    assert not (tmp_path / "out").exists()


def test_what_mlflow_loads_predicts_rows(file: Path) -> None:
    file.rename(file.with_name("model.onnx"))
    settings = {"threads": 1, "batch_size": 2, "providers": [["CPUExecutionProvider", {}]]}
    file.with_name("settings.json").write_text(json.dumps(settings))
    model = mlflow_models._load_pyfunc(str(file.parent))
    x, weights = np.ones((3, 8), np.float32), linear_weights()
    result = model.predict({"x": x, "other": x})
    assert list(result) == ["y"]
    assert_close(result["y"], x @ weights["weight"] + weights["bias"])


@pytest.mark.parametrize(
    ("reader", "options", "message"),
    [
        ("torchserve", {}, "reader must be one of triton, kserve, mlflow, onnxruntime, got 'torch"),
        ("kserve", {"served_from": "/m"}, "served_from is for triton, not for kserve"),
        ("triton", {"variants": ["stock"]}, "variants is for onnxruntime, not for triton"),
        ("kserve", {"batch_size": 4}, "batch_size is for triton and mlflow, not for kserve"),
        ("kserve", {"custom_ops": [__file__]}, "custom_ops cannot be set"),
    ],
)
def test_options_that_do_not_fit(
    file: Path, tmp_path: Path, reader: Any, options: Any, message: str
) -> None:
    with pytest.raises(SaveError, match=message):
        package(file, tmp_path / "out", reader, **options)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_files_is_kept(file: Path, tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="it exists and is not empty"):
        package(file, tmp_path, "kserve")
    assert file.is_file()


def test_strings_and_numbers_run_alike(file: Path, tmp_path: Path) -> None:
    opened = session(file)
    assert run_arrays(opened, {"x": np.ones((2, 8), np.float32)})["y"].shape == (2, 64)
    with pytest.raises(InputError):
        run_arrays(opened, {"z": np.ones((2, 8), np.float32)})
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (string[n] text) => (string[n] same) { same = Identity(text) }"""
    OnnxProgram({"main": parse(text)}).save(tmp_path / "text.onnx")
    opened = session(tmp_path / "text.onnx")
    texts = np.array(["a", "b"], object)
    assert run_arrays(opened, {"text": texts})["same"].tolist() == ["a", "b"]
    with pytest.raises(InputError, match=r"inputs must be text: string\[n\], got txt"):
        run_arrays(opened, {"txt": texts})
