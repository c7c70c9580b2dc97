"""``coreai-onnx convert-dtype``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coreai_onnx.cli import main
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.sessions.create import session
from tests.quantization.example_weights import correlated_inputs, heavy_tailed, linear


def test_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "half.onnx"
    OnnxProgram({"main": linear(heavy_tailed(64, 128))}).save(path)
    x = correlated_inputs(3, 128)
    np.savez(tmp_path / "x.npz", x=x)
    words = [str(path), "-o", str(out), "--keep-io", "--calibration", str(tmp_path / "x.npz")]
    assert main(["convert-dtype", *words]) == 0
    assert "float16: 2 nodes, weights 32.0 KiB → 16.0 KiB" in capsys.readouterr().out
    before, after = session(path).run(x)[0], session(out).run(x)[0]
    assert after.dtype == before.dtype
    assert 0 < np.abs(after - before).max() < 5e-3 * np.abs(before).max()
    assert main(["convert-dtype", str(path), "-o", str(path), "--dtype", "int8"]) == 2
    assert "dtype='int8'; choose from float16, bfloat16" in capsys.readouterr().err
    assert session(path).run(x)[0].dtype == np.float32
