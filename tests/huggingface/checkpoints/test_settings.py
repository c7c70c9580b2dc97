"""Tests of settings of a checkpoint's configuration and its tensors, read with typed errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.settings import Checkpoint, check_settings, matches


@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_what_is_off_is_not_refused(value: Any) -> None:
    check_settings("GPTQ", {"bits": 4, "rotation": value}, {"bits"})


def test_another_setting_is_named() -> None:
    with pytest.raises(ModelSourceError, match="GPTQ: the setting rotation = 'hadamard' is not"):
        check_settings("GPTQ", {"bits": 4, "rotation": "hadamard"}, {"bits"})


def test_patterns_match_the_start_of_a_path() -> None:
    assert matches(r"model\.layers\.\d+", "model.layers.10.mlp")
    assert not matches("layers", "model.layers.10.mlp")
    with pytest.raises(ModelSourceError, match=r"the pattern '\[' of layers is not valid"):
        matches("[", "model")


def test_several_files(tmp_path: Path) -> None:
    for k in (1, 2):
        save_file({f"model.w{k}": torch.full((2,), float(k))}, tmp_path / f"{k}.safetensors")
    table = {"model.w1": "1.safetensors", "model.w2": "2.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": table}))
    tensors = Checkpoint.of(tmp_path)
    assert tensors["model.w2"].tolist() == [2, 2]
    assert set(tensors) == {"model.w1", "model.w2"}
    assert tensors.unread == {"model.w1"}
    assert tensors.get("model.w3") is None
    with pytest.raises(ModelSourceError, match=r"no tensor model\.w3"):
        tensors["model.w3"]
    index.write_text("{}")
    with pytest.raises(ModelSourceError, match="cannot read"):
        Checkpoint.of(tmp_path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match=r"from model\.safetensors only"):
        Checkpoint.of(tmp_path)
