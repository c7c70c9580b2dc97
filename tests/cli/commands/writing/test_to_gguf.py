"""``coreai-onnx to-gguf``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from coreai_onnx.cli import main
from coreai_onnx.huggingface import checkpoints, export_model
from tests.support.huggingface_folders import DOCSTRING_LLAMA


def test_a_folder_becomes_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = export_model(DOCSTRING_LLAMA, tmp_path / "folder", check=False).path
    capsys.readouterr()
    assert main(["to-gguf", str(folder), "-o", str(tmp_path / "m.gguf")]) == 0
    assert "F32" in capsys.readouterr().out
    assert (tmp_path / "m.gguf").read_bytes()[:4] == b"GGUF"
    assert main(["to-gguf", str(folder / "model.onnx"), "-o", str(tmp_path / "m.onnx")]) == 2
    assert "--output must be a .gguf file" in capsys.readouterr().err
    for name in [n for n in sys.modules if n.startswith(f"{checkpoints.__name__}.gguf")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(checkpoints, "gguf", raising=False)
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert main(["to-gguf", str(folder), "-o", str(tmp_path / "m.gguf")]) == 2
    assert "the gguf package is not installed: pip install gguf\n" in capsys.readouterr().err
