"""``coreai-onnx memory``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coreai_onnx import convert
from coreai_onnx.cli import main
from coreai_onnx.program import OnnxProgram
from tests.runtime.memory.test_reordering import Branches
from tests.support.small_models import add_model, linear_model


@pytest.fixture
def path(tmp_path: Path) -> str:
    OnnxProgram({"main": linear_model()}).save(tmp_path / "m.onnx")
    return str(tmp_path / "m.onnx")


def test_the_plan_of_a_file(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", path, "--dim", "batch=128", "--no-kernels"]) == 0
    out = capsys.readouterr().out
    assert "on function bodies at batch=128" in out
    assert "1.00 of the plan, in onnxruntime" in out
    assert "at the peak" in out
    assert main(["memory", path, "--low-memory", "--no-kernels"]) == 0
    assert "at batch=2" in capsys.readouterr().out


def test_an_entrypoint_of_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    OnnxProgram({"main": linear_model(), "add": add_model()}).save_bundle(tmp_path / "b")
    words = ["memory", str(tmp_path / "b"), "--entrypoint", "add", "--input", "ids=int64[3,5]"]
    assert main(words) == 0
    assert "at batch=3, seq=5" in capsys.readouterr().out


def test_a_better_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(Branches().eval(), (torch.randn(4, 16),)).save(tmp_path / "m.onnx")
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    words = ["--no-kernels", "--reorder"]
    assert main(["memory", str(tmp_path / "m.onnx"), *words, str(first)]) == 0
    assert f"peak 320.0 KiB -> 256.0 KiB, written to {first}" in capsys.readouterr().out
    assert main(["memory", str(first), *words, str(second)]) == 0
    assert "no other order takes less memory" in capsys.readouterr().out
    assert not second.exists()


def test_failures(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", path, "--dim", "row=1"]) == 2
    assert "the inputs have no such dim" in capsys.readouterr().err
    assert main(["memory", path, "--provider", "webgpu"]) == 2
    assert "error: memory is measured on the CPU" in capsys.readouterr().err
    assert main(["memory", path + "x"]) == 2
    assert "no such file" in capsys.readouterr().err
