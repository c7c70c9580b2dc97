"""bitsandbytes: palettes of 4 bits, and bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints import bitsandbytes as reader
from tests.huggingface.checkpoints.formats import FORMATS, Written, nf4, read_back
from tests.support.tolerances import assert_close


@pytest.mark.parametrize(
    "name", [name for name in FORMATS if name.startswith(("nf4", "fp4", "bitsandbytes"))]
)
def test_every_code_has_its_value(name: str, tmp_path: Path) -> None:
    values, wanted = read_back(tmp_path, reader, FORMATS[name])
    if name == "bitsandbytes 8":  # the library divides by 127 after the product with a code
        assert_close(values, wanted)
    else:
        assert torch.equal(values, wanted)


def test_a_layer_of_another_shape(tmp_path: Path) -> None:
    settings, write = nf4(32)
    with pytest.raises(ModelSourceError, match=r"fc is \[96, 64\] in the checkpoint"):
        read_back(tmp_path, reader, (settings, lambda shape: write(shape[::-1])))


def test_a_state_that_is_not_json(tmp_path: Path) -> None:
    settings, write = nf4(32)

    def broken(shape: tuple[int, int]) -> Written:
        tensors, weight = write(shape)
        name = "weight.quant_state.bitsandbytes__nf4"
        return {**tensors, name: tensors[name][:-3].clone()}, weight

    with pytest.raises(ModelSourceError, match="quant_state of fc is not valid"):
        read_back(tmp_path, reader, (settings, broken))
