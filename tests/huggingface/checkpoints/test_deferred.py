"""Checkpoints that exceed the memory: their weights stay in the files until they are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coreai_onnx.errors import (
    ModelSourceError,
    PartialCheckWarning,
    QuantizationError,
    SaveError,
)
from coreai_onnx.export.deferred import deferred_source
from coreai_onnx.huggingface.checkpoints import loading
from coreai_onnx.huggingface.exporting import export_model
from coreai_onnx.huggingface.sources import load_source
from coreai_onnx.model.files import mapped_tensors
from tests.support.huggingface_folders import llama, tokenizer

WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in bfloat16 of several shards."""
    path = tmp_path_factory.mktemp("shards")
    llama(**WIDE).bfloat16().save_pretrained(path, max_shard_size="600KB")
    tokenizer().save_pretrained(path)
    assert len(list(path.glob("model-*.safetensors"))) > 2
    return path


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every model exceed the memory."""
    monkeypatch.setattr(loading, "MEMORY_SHARE", 0.0)


def exported(source: Path, folder: Path, **options: Any) -> dict[str, bytes]:
    """Return the files of an export, without the table of source lines, which has no order."""
    export_model(source, folder, check=False, **options)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize(
    "options",
    [
        {"quantization": {"bits": 4, "method": "rtn"}, "target": "kernels"},
        {"external_data": True},
        {"dtype": "float16"},
        {"weights_dtype": "float32"},
    ],
    ids=["4bits", "bfloat16", "float16", "float32"],
)
def test_the_files_are_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    usual = exported(folder, tmp_path / "usual", **options)
    monkeypatch.setattr(loading, "MEMORY_SHARE", 0.0)
    monkeypatch.setattr(mapped_tensors, "LARGE", 1 << 12)
    assert exported(folder, tmp_path / "deferred", **options) == usual
    assert not list(tmp_path.glob(".*"))


@pytest.mark.usefixtures("no_memory")
def test_weights_stay_in_the_files(folder: Path) -> None:
    model = load_source(folder).model
    stored = load_source(folder, dtype=torch.float32).model.state_dict(keep_vars=True)
    projection = model.model.layers[1].mlp.up_proj.weight
    source = deferred_source(projection)
    assert source is not None
    assert source.dtype == torch.bfloat16
    assert projection.dtype == torch.float32
    assert stored.keys() == model.state_dict().keys()
    norm = model.model.layers[1].input_layernorm.weight
    assert deferred_source(norm) is None
    assert norm.all()
