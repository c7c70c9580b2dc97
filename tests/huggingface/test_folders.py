"""Tests of folders of transformers and their configuration."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.folders import copy_companions, setting_fault
from coreai_onnx.huggingface.sources import load_source
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


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_hidden_layers", -1, "num_hidden_layers is -1, and must be from 1 to 10,000"),
        ("num_hidden_layers", 2**31, "num_hidden_layers is 2147483648, and must be from 1 to 10,"),
        ("num_attention_heads", 0, "num_attention_heads is 0, and must be from 1 to 2,147,483,647"),
        ("vocab_size", -1, "vocab_size is -1, and must be from 1 to"),
        ("hidden_size", 2**70, "hidden_size is 1180591620717411303424, and must be a 64-bit"),
        ("rms_norm_eps", math.nan, "rms_norm_eps is nan, and must be a number"),
        ("initializer_range", -(2**70), "initializer_range is -1180591620717411303424, and must"),
    ],
)
def test_a_number_is_refused_by_name(name: str, value: Any, message: str, tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))
    for source in (tmp_path, file):
        with pytest.raises(ModelSourceError, match=message) as caught:
            load_source(source)
        assert "\n" not in str(caught.value)


def test_a_configuration_of_a_part() -> None:
    fault = setting_fault({"text_config": {"num_hidden_layers": 0}})
    assert fault == "text_config.num_hidden_layers is 0, and must be from 1 to 10,000"


def test_numbers_of_other_kinds() -> None:
    settings = {"num_hidden_layers": None, "vocab_size": [1], "use_cache": True, "scale": math.inf}
    assert setting_fault({**settings, "sliding_window": -1, "hidden_size": 1}) == ""
