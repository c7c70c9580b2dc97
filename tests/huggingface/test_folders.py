"""The files beside the model in exported folders."""

from __future__ import annotations

import json
from pathlib import Path

from coreai_onnx.huggingface.folders import copy_companions
from tests.support.huggingface_folders import llama, llama_folder


def test_what_is_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    model = llama_folder(source)
    (source / "README.md").touch()
    target.mkdir()
    copy_companions(model, source, target)
    names = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert {file.name for file in target.iterdir()} == names
    assert (target / "config.json").read_bytes() == (source / "config.json").read_bytes()


def test_a_model_without_a_folder(tmp_path: Path) -> None:
    copy_companions(llama(), None, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"
    assert (tmp_path / "generation_config.json").is_file()
