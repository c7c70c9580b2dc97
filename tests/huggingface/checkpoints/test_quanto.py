"""optimum-quanto: codes of groups in parts of bytes, and shifts in floating point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints import quanto as reader
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedLinear
from coreai_onnx.huggingface.sources import load_source
from tests.huggingface.checkpoints.formats import quanto, read_back
from tests.support.huggingface_folders import llama
from tests.support.tolerances import assert_close

IDS = torch.tensor([[5, 9, 3, 17, 200]])


@pytest.mark.parametrize("form", [(8, "qint"), (4, "qint"), (2, "qint"), (8, "qfloat")])
def test_every_code_has_its_value(form: tuple[int, str], tmp_path: Path) -> None:
    values, wanted = read_back(tmp_path, reader, quanto(*form))
    torch.testing.assert_close(values, wanted, rtol=2e-6, atol=1e-6)


def folder_with(folder: Path, weights: str, form: Any) -> Any:
    """Write a folder as optimum-quanto does: its settings are in a file of their own."""
    model = llama()
    tensors, layers = dict(model.state_dict()), {}
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and path != "lm_head":
            parts, weight = form[1]((module.out_features, module.in_features))
            del tensors[f"{path}.weight"]
            tensors |= {f"{path}.{name}": tensor for name, tensor in parts.items()}
            module.weight.data.copy_(weight)
            layers[path] = {"weights": weights, "activations": "none"}
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    save_file({name: x.clone() for name, x in tensors.items()}, folder / "model.safetensors")
    (folder / "quanto_qmap.json").write_text(json.dumps(layers))
    return model


def test_a_folder(tmp_path: Path) -> None:
    model = folder_with(tmp_path, "qint4", quanto(4))
    loaded = load_source(tmp_path).model
    with torch.no_grad():
        assert_close(loaded(IDS).logits.numpy(), model(IDS).logits.numpy())
    assert sum(isinstance(m, PackedLinear) for m in loaded.modules()) == 14


def test_unsupported_types(tmp_path: Path) -> None:
    folder_with(tmp_path, "qfloat8_e5m2", quanto(8))
    with pytest.raises(ModelSourceError, match="has weights 'qfloat8_e5m2' and activations 'none'"):
        load_source(tmp_path)
    (tmp_path / "quanto_qmap.json").write_text("[1]")
    with pytest.raises(ModelSourceError, match=r"cannot read .*quanto_qmap\.json"):
        load_source(tmp_path)
