"""``coreai-onnx extract``."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.cli import main
from tests.debugging.small_reference import converted


def test_a_module_runs_alone_and_is_blamed_by_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, record, part = (str(tmp_path / name) for name in ("m.onnx", "m.pt2", "first.onnx"))
    converted().save(model, record=record)
    assert main(["extract", model, "first", "-o", part]) == 0
    assert "input   layer_norm" in capsys.readouterr().out
    assert main(["run", part, "--no-kernels"]) == 0
    assert main(["blame", part, record, "--no-kernels"]) == 0
    assert "nothing is wrong: 1 regions" in capsys.readouterr().out


def test_an_unknown_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    converted().save(tmp_path / "m.onnx")
    assert main(["extract", str(tmp_path / "m.onnx"), "third", "-o", str(tmp_path / "p.onnx")]) == 2
    assert "no node comes from the module 'third'; there are " in capsys.readouterr().err
    assert not (tmp_path / "p.onnx").exists()
