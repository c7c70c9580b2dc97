"""Adapters of peft around small models of transformers."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tools.foreign.case import Case, ids_and_mask, imported
from tools.foreign.transformers_cases import small_config

_LINEAR = ["q_proj", "v_proj"]


def base(family: str, **given: Any) -> torch.nn.Module:
    """Return a small model of transformers."""
    config = small_config(imported("transformers.CONFIG_MAPPING")[family], **given)
    made: torch.nn.Module = imported("transformers.AutoModel").from_config(config)
    return made


def _make(config: str, family: str, given: dict[str, Any]) -> torch.nn.Module:
    # A task's model has the arguments of a forward by name, which dynamic_shapes needs.
    peft_config = imported(f"peft.{config}")(task_type="FEATURE_EXTRACTION", **given)
    made: torch.nn.Module = imported("peft.get_peft_model")(base(family), peft_config)
    return made


def _case(config: str, label: str = "", family: str = "llama", **given: Any) -> Case:
    make = functools.partial(_make, config, family, given)
    name = f"peft/{config.removesuffix('Config')}{label}"
    return Case(name, "peft", make, ids_and_mask)


PEFT = (
    _case("LoraConfig", r=4, target_modules=_LINEAR),
    _case("LoraConfig", " DoRA", r=4, target_modules=_LINEAR, use_dora=True),
    _case("LoraConfig", " rsLoRA", r=4, target_modules=_LINEAR, use_rslora=True),
    _case("LoraConfig", " of BERT", "bert", r=4, target_modules=["query", "value"]),
    _case("LoraConfig", " embeddings", r=4, target_modules=["embed_tokens", "o_proj"]),
    _case("IA3Config", target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    _case("LoHaConfig", r=4, target_modules=_LINEAR),
    _case("LoKrConfig", r=4, target_modules=_LINEAR),
    _case("OFTConfig", r=4, oft_block_size=0, target_modules=_LINEAR),
    _case("BOFTConfig", boft_block_size=4, target_modules=_LINEAR),
    _case("VeraConfig", r=4, target_modules=_LINEAR),
    _case("HRAConfig", r=4, target_modules=_LINEAR),
    _case("FourierFTConfig", n_frequency=20, target_modules=_LINEAR),
    _case("LNTuningConfig", target_modules=["input_layernorm"]),
    _case("PromptTuningConfig", num_virtual_tokens=4),
    _case("PrefixTuningConfig", num_virtual_tokens=4),
)
"""Every case, in the order of the sweep."""
