"""The file that another Python executes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from coreai_onnx.debugging.comparing import runtime_process
from coreai_onnx.program import OnnxProgram
from tests.support.small_models import linear_model, linear_weights
from tests.support.tolerances import assert_close


def test_it_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    runtime_process.main([])
    assert capsys.readouterr().out.strip() == ort.__version__


def test_it_runs_the_model_of_a_folder(tmp_path: Path) -> None:
    OnnxProgram({"main": linear_model()}).save(tmp_path / "m.onnx")
    job = {"model": str(tmp_path / "m.onnx"), "inputs": [["x", 0]]}
    (tmp_path / "job.json").write_text(json.dumps(job))
    x = np.ones((2, 8), np.float32)
    np.savez(tmp_path / "inputs.npz", **{"0": x})
    runtime_process.main([str(tmp_path)])
    assert json.loads((tmp_path / "outputs.json").read_text()) == [["y", "tensor(float)"]]
    weights = linear_weights()
    assert_close(np.load(tmp_path / "outputs.npz")["0"], x @ weights["weight"] + weights["bias"])


def test_it_imports_nothing_of_this_package() -> None:
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1]); "
        "assert not {'coreai_onnx', 'onnx', 'torch', 'ml_dtypes'} & set(sys.modules)"
    )
    command = [sys.executable, "-I", "-c", code, runtime_process.__file__]
    subprocess.run(command, check=True)
