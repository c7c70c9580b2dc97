"""``coreai-onnx ops-path``."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.cli import main
from coreai_onnx.runtime.libraries import library


def test_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ops = tmp_path / "ops.so"
    ops.touch()
    monkeypatch.setenv(library.ENVIRONMENT_VARIABLE, str(ops))
    assert main(["ops-path"]) == 0
    assert capsys.readouterr().out == f"{ops}\n"


def test_no_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(library.ENVIRONMENT_VARIABLE, "/nowhere")
    assert main(["ops-path"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: COREAI_ONNX_OPS=/nowhere does not name a file")
