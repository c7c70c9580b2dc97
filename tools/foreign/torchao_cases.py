"""Modules that torchao quantized: a small network, and a decoder of transformers."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tools.foreign.case import Case, Inputs, Size, ids_and_mask, imported
from tools.foreign.peft_cases import base

WIDTH = 64


def _rows(size: Size) -> Inputs:
    return {"input": torch.randn(size.batch, size.length, WIDTH)}


def _mlp() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 128), torch.nn.GELU(), torch.nn.Linear(128, WIDTH)
    )


def _quantize(config: str, given: dict[str, Any], module: torch.nn.Module) -> None:
    imported("torchao.quantization.quantize_")(
        module, imported(f"torchao.quantization.{config}")(**given)
    )


def _cases(config: str, label: str = "", **given: Any) -> tuple[Case, Case]:
    finish = functools.partial(_quantize, config, given)
    name = f"torchao/{config.removesuffix('Config')}{label}"
    quantizes = "DynamicActivation" in config
    return (
        Case(name, "torchao", _mlp, _rows, finish, quantizes=quantizes),
        Case(
            f"{name} llama",
            "torchao",
            functools.partial(base, "llama", intermediate_size=64),
            ids_and_mask,
            finish,
            quantizes=quantizes,
        ),
    )


TORCHAO = (
    *_cases("Int8WeightOnlyConfig"),
    *_cases("Int8DynamicActivationInt8WeightConfig"),
    *_cases("Int8DynamicActivationIntxWeightConfig"),
    *_cases("IntxWeightOnlyConfig"),
    *_cases("Float8WeightOnlyConfig"),
)
"""Every case, in the order of the sweep."""
