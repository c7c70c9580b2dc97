"""``coreai-onnx annotate``."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.cli import main
from coreai_onnx.program import OnnxProgram
from tests.debugging.small_reference import converted


def row(out: str, code: str) -> list[str]:
    (line,) = (line for line in out.splitlines() if line.endswith(code))
    return line.removesuffix(code).split()


def test_times_without_the_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    converted().save(tmp_path / "m.onnx")
    assert main(["annotate", str(tmp_path / "m.onnx"), "--no-kernels", "--runs", "2"]) == 0
    time, share, line = row(capsys.readouterr().out, "hidden = torch.tanh(hidden) + x")
    assert float(time) > 0
    assert share.endswith("%")
    assert int(line) > 0


def test_errors_with_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    converted().save(tmp_path / "m.onnx", record=tmp_path / "m.pt2")
    changed = OnnxProgram.load(tmp_path / "m.onnx")
    next(n for n in changed.model.graph if n.op_type == "Tanh").op_type = "Sigmoid"
    changed.save(tmp_path / "m.onnx")
    given = [str(tmp_path / "m.onnx"), str(tmp_path / "m.pt2"), "--no-kernels", "--runs", "1"]
    assert main(["annotate", *given]) == 0
    out = capsys.readouterr().out
    assert "wrong" in row(out, "hidden = torch.tanh(hidden) + x")
    assert "wrong" not in row(out, "return self.second(hidden).softmax(-1)")
    bodies, torch, _, error, own, _ = row(out, "return self.second(hidden).softmax(-1)")
    assert float(bodies) > 0
    assert float(torch) > 0
    assert 0 <= float(error) < 1e-5
    assert 0 <= float(own) < 1e-5


def test_the_lines_around(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = converted()
    program.save(tmp_path / "m.onnx")
    root = Path(__file__).parents[3]
    source = next(n.metadata_props["coreai.source"] for n in program.model.graph)
    file = source.rpartition(":")[0]
    tests = (folder for folder in (root / "tests").rglob("*") if folder.is_dir())
    folder = next(place for place in (root, *tests) if (place / file).is_file())
    given = [str(tmp_path / "m.onnx"), "--no-kernels", "--runs", "1", "--source", str(folder)]
    assert main(["annotate", *given]) == 0
    assert '"""Return probabilities for [batch, 8]."""' in capsys.readouterr().out
