"""HQQ: codes of groups in parts of words, and zero points in floating point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints import hqq as reader
from tests.huggingface.checkpoints.formats import FORMATS, Written, hqq, read_back


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("hqq")])
def test_every_code_has_its_value(name: str, tmp_path: Path) -> None:
    values, wanted = read_back(tmp_path, reader, FORMATS[name])
    assert torch.equal(values, wanted)


@pytest.mark.parametrize("group", [64, 128, 384])
def test_groups_that_continue_in_the_next_row(group: int, tmp_path: Path) -> None:
    values, wanted = read_back(tmp_path, reader, hqq(4, group))
    assert torch.equal(values, wanted)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("nbits", torch.tensor(1), "HQQ with 1 bits"),
        ("axis", torch.tensor(0), "axis=0"),
        ("quant_scale", torch.tensor(1), "'quant_scale'"),
        ("shape", torch.tensor([96, 64]), r"shape \[96, 64\]"),
        ("scale", torch.ones(5, 1), r"\[64, 96\] in groups of 32 must have 192 scales, got 5"),
    ],
)
def test_unsupported_layers(name: str, value: torch.Tensor, message: str, tmp_path: Path) -> None:
    settings, write = hqq(4)

    def written(shape: tuple[int, int]) -> Written:
        tensors, weight = write(shape)
        return {**tensors, name: value}, weight

    with pytest.raises(ModelSourceError, match=message):
        read_back(tmp_path, reader, (settings, written))


def test_unknown_settings() -> None:
    settings: dict[str, Any] = {"quant_method": "hqq", "patch": True}
    with pytest.raises(ModelSourceError, match="HQQ: the setting patch = True"):
        reader.check(settings)
