"""Adapters of LoRA in the files of peft, and the models that they make."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

STEP = 1 / 64
"""Of weights that 4 bits hold exactly."""


def of_four_bits(model: Any, group_size: int = 16) -> Any:
    """Replace weights by those that 4 bits with offsets hold exactly, in groups; return the model.

    Each group has the least and the largest code, so that the scale is that of the codes.
    """
    for parameter in model.parameters():
        if parameter.dim() == 2:
            codes = torch.randint(-8, 8, parameter.shape)
            codes[:, ::group_size], codes[:, 1::group_size] = -8, 7
            parameter.data = codes * STEP
    return model.eval()


def settings(**changed: Any) -> dict[str, Any]:
    """Return an ``adapter_config.json``."""
    usual = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "target_modules": []}
    return {**usual, **changed}


def write(folder: Path, content: Any, tensors: Mapping[str, torch.Tensor]) -> Path:
    """Write an adapter as peft does."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(content))
    named = {f"base_model.model.{name}": x.contiguous() for name, x in tensors.items()}
    save_file(named, folder / "adapter_model.safetensors")
    return folder


def factors(model: Any, ranks: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Return random factors of the linear layers whose last names have a rank."""
    found: dict[str, torch.Tensor] = {}
    for path, layer in model.named_modules():
        rank = ranks.get(path.rpartition(".")[2])
        if rank is not None:
            found[f"{path}.lora_A.weight"] = torch.randn(rank, layer.in_features) / 8
            found[f"{path}.lora_B.weight"] = torch.randn(layer.out_features, rank) / 8
    return found


def merged(model: Any, content: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return a copy of a model whose weights have an adapter added to them."""
    changed = copy.deepcopy(model)
    for name, second in tensors.items():
        path, _, kind = name.rpartition(".lora_")
        if kind != "B.weight":
            continue
        last, rank = path.rpartition(".")[2], second.shape[1]
        alpha = content.get("alpha_pattern", {}).get(last, content["lora_alpha"])
        scale = alpha / (math.sqrt(rank) if content.get("use_rslora") else rank)
        product = second.double() @ tensors[f"{path}.lora_A.weight"].double()
        layer = changed.get_submodule(path)
        layer.weight.data = (layer.weight.double() + scale * product).float()
    return changed
