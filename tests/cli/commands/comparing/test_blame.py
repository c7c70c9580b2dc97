"""``coreai-onnx blame``."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.cli import main
from coreai_onnx.program import OnnxProgram
from tests.debugging.small_reference import converted


def files(folder: Path, *, wrong: bool) -> list[str]:
    program = converted()
    program.save(folder / "m.onnx", record=folder / "m.pt2")
    if wrong:
        changed = OnnxProgram.load(folder / "m.onnx")
        next(n for n in changed.model.graph if n.op_type == "Tanh").op_type = "Sigmoid"
        changed.save(folder / "m.onnx")
    return [str(folder / "m.onnx"), str(folder / "m.pt2")]


def test_a_right_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["blame", *files(tmp_path, wrong=False), "--no-kernels"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out


def test_a_wrong_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = files(tmp_path, wrong=True)
    assert main(["blame", *given, "--no-kernels", "--reproduce", str(tmp_path / "w")]) == 1
    out = capsys.readouterr().out
    assert "hidden = torch.tanh(hidden) + x" in out
    assert (tmp_path / "w" / "0" / "model.onnx").is_file()


def test_bad_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, record = files(tmp_path, wrong=False)
    assert main(["blame", record, model]) == 2
    assert main(["blame", model, model]) == 2
    assert "is not a record" in capsys.readouterr().err


def test_convert_writes_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "made.py").write_text(
        "import torch\ndef one(): return torch.nn.Linear(2, 3).eval(), (torch.ones(1, 2),)\n"
    )
    model, record = str(tmp_path / "m.onnx"), str(tmp_path / "m.pt2")
    assert main(["convert", f"{tmp_path}/made.py:one", "-o", model, "--record", record]) == 0
    assert main(["blame", model, record, "--no-kernels"]) == 0
    assert f"wrote {record}" in capsys.readouterr().out
