"""``coreai-onnx profile``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coreai_onnx.cli import main
from tests.debugging.small_reference import converted


def files(folder: Path) -> list[str]:
    converted().save(folder / "m.onnx", record=folder / "m.pt2")
    return [str(folder / "m.onnx"), str(folder / "m.pt2")]


def test_tables_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = files(tmp_path)
    page, overlay = tmp_path / "p.html", tmp_path / "o.json"
    chosen = ["--by", "module", "--by", "node", "--limit", "2", "--runs", "2", "--threads", "1"]
    written = ["--html", str(page), "--overlay", str(overlay)]
    assert main(["profile", model, *chosen, *written]) == 0
    out = capsys.readouterr().out
    assert out.startswith("bodies: 2 runs, median ")
    assert "GFLOP/s (float32 product" in out
    assert "(root)" in out
    assert "… and " in out
    assert "<title>Profile of " in page.read_text()
    (graph,) = json.loads(overlay.read_text()).values()
    assert graph["name"] == "kernels ms"
    assert {"first.Gemm", "first.MatMul"} & graph["results"].keys()


def test_a_record_adds_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, record = files(tmp_path)
    assert main(["profile", model, record, "--no-kernels", "--runs", "1"]) == 0
    out = capsys.readouterr().out
    assert "bodies ms  torch ms" in out
    assert "hidden = torch.tanh(hidden) + x" in out
    assert main(["profile", model, record, "--dim", "batch=3"]) == 2
    assert "a model without a record" in capsys.readouterr().err


def test_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = files(tmp_path)
    assert main(["profile", model, "--html", str(tmp_path / "no" / "p.html")]) == 2
    assert main(["profile", str(tmp_path / "none.onnx")]) == 2
    err = capsys.readouterr().err
    assert "there is no folder" in err
    assert "no such file" in err
