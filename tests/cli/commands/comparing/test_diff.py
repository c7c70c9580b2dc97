"""``coreai-onnx diff``."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.cli import main
from coreai_onnx.program import OnnxProgram
from tests.support.small_models import linear_model


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"{seed}.onnx" for seed in (0, 1)]
    for seed, path in enumerate(paths):
        OnnxProgram({"main": linear_model(seed=seed)}).save(path)
    return [str(path) for path in paths]


def test_the_same(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", files[0], files[0]]) == 0
    assert capsys.readouterr().out == "the models are the same\n"


def test_different(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *files]) == 1
    assert "weights: 2" in capsys.readouterr().out
    assert main(["diff", *files, "--limit", "1"]) == 1
    assert "… and 1 more" in capsys.readouterr().out
    assert main(["diff", *files, "--structure"]) == 0


def test_reports(files: list[str], tmp_path: Path) -> None:
    html, text = tmp_path / "d.html", tmp_path / "d.txt"
    for output in (html, text):
        assert main(["diff", *files, "--limit", "1", "--output", str(output)]) == 1
        assert "bias" in output.read_text()
        assert "weight" in output.read_text()
    assert html.read_text().startswith("<!doctype html>")


def test_errors(files: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["diff", files[0], "nowhere.onnx"]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["diff", *files, "--output", "d.pdf"]) == 2
    assert ".html or .txt" in capsys.readouterr().err
    assert main(["diff", *files, "--output", str(tmp_path / "no" / "d.txt")]) == 2
    assert "cannot write" in capsys.readouterr().err
