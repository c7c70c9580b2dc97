"""``coreai-onnx compare``."""

from __future__ import annotations

import sys
from pathlib import Path

import onnxruntime as ort
import pytest
import torch

from coreai_onnx.cli import main
from coreai_onnx.program import OnnxProgram
from tests.debugging.small_reference import converted
from tests.support.small_models import linear_model

FACTORIES = """
import torch
from tests.support.small_models import linear_weights

class Linear(torch.nn.Module):
    def __init__(self, error):
        super().__init__()
        self.weights = {name: torch.from_numpy(a) for name, a in linear_weights().items()}
        self.error = error
    def forward(self, x):
        return x @ self.weights["weight"] + self.weights["bias"] + self.error

def right(): return Linear(0.0), (torch.randn(2, 8),)
def keyword(): return Linear(0.0), (), {"x": torch.randn(2, 8)}
def wrong(): return Linear(0.5), (torch.randn(2, 8),)
def narrow(): return Linear(0.0), (torch.randn(2, 7),)
def other(): return torch.nn.Identity(), ()
"""


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, str]:
    """The model file and the file of factories."""
    OnnxProgram({"main": linear_model()}).save(tmp_path / "m.onnx")
    (tmp_path / "factories.py").write_text(FACTORIES)
    return str(tmp_path / "m.onnx"), str(tmp_path / "factories.py")


@pytest.mark.parametrize("factory", ["right", "keyword"])
def test_a_right_model(
    words: tuple[str, str], factory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", words[0], f"{words[1]}:{factory}"]) == 0
    out = capsys.readouterr().out
    assert "bodies" in out
    assert "ok" in out


def test_a_wrong_model(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", words[0], f"{words[1]}:wrong"]) == 1
    assert "128 of 128 differ" in capsys.readouterr().out
    assert main(["compare", words[0], f"{words[1]}:wrong", "--atol", "0.6"]) == 0


def test_another_file(
    words: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", words[0], words[0]]) == 0
    assert "the tolerances of torch.testing.assert_close" in capsys.readouterr().out
    OnnxProgram({"main": linear_model()}).save(tmp_path / "same.onnx")
    assert main(["compare", str(tmp_path / "same.onnx"), words[0], "--rtol", "0"]) == 0


def test_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / name) for name in ("m.onnx", "m.pt2")]
    converted().save(files[0], record=files[1])
    assert main(["compare", *files, "--values"]) == 0
    assert "LayerNorm" in capsys.readouterr().out


def test_a_program_without_example_inputs(
    words: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = torch.export.export(torch.nn.Linear(8, 64), (torch.ones(2, 8),))
    program.example_inputs = None
    path = tmp_path / "bare.pt2"
    torch.export.save(program, path)
    assert main(["compare", words[0], str(path)]) == 2
    assert capsys.readouterr().err == f"error: {path} holds no example inputs to compare on\n"


def test_a_module_that_fails(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", words[0], f"{words[1]}:narrow"]) == 2
    assert "error: the module fails on the arguments: " in capsys.readouterr().err


def test_errors(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "nowhere.onnx", f"{words[1]}:right"]) == 2
    assert capsys.readouterr().err == "error: nowhere.onnx: no such file\n"
    assert main(["compare", words[0], f"{words[1]}:missing"]) == 2
    assert "has no 'missing'" in capsys.readouterr().err
    assert main(["compare", words[0], f"{words[1]}:other"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_another_runtime(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    given = ["compare", words[0], f"{words[1]}:right", "--runtime"]
    assert main([*given, sys.executable]) == 0
    assert f"onnxruntime {ort.__version__}" in capsys.readouterr().out
    assert main([*given, "no/python"]) == 2
    assert "cannot start the Python 'no/python'" in capsys.readouterr().err
