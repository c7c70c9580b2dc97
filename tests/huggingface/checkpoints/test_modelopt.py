"""ModelOpt: numbers of 8 and 4 bits, and rounded inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints import modelopt as reader
from coreai_onnx.huggingface.checkpoints.settings import Checkpoint
from tests.huggingface.checkpoints.formats import FORMATS, Written, float4, fp8, read_back


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("modelopt")])
def test_every_code_has_its_value(name: str, tmp_path: Path) -> None:
    values, wanted = read_back(tmp_path, reader, FORMATS[name])
    assert torch.equal(values, wanted)


def test_float8(tmp_path: Path) -> None:
    def write(shape: tuple[int, int]) -> Written:
        tensors, _ = fp8(blocks=None)[1](shape)
        tensors["weight_scale"] = torch.tensor(0.125)
        return tensors, tensors["weight"].float() / 8

    settings = {"quant_method": "modelopt", "quant_algo": "FP8"}
    values, wanted = read_back(tmp_path, reader, (settings, write))
    assert torch.equal(values, wanted)


@pytest.mark.parametrize("algorithm", ["FP8", "NVFP4"])
def test_rounded_inputs(algorithm: str, tmp_path: Path) -> None:
    _, write = float4(inputs=True) if algorithm == "NVFP4" else fp8(blocks=None)
    tensors, _ = write((64, 96))
    tensors["input_scale"] = torch.tensor(0.25)
    save_file({f"fc.{name}": x for name, x in tensors.items()}, tmp_path / "model.safetensors")
    weight = reader.read(Checkpoint.of(tmp_path), "fc", {"quant_algo": algorithm}, (64, 96))
    assert weight is not None
    assert weight.rounding is not None
    x = torch.tensor([[0.5] * 15 + [1.0]]) * 0.25 * 6
    if algorithm == "NVFP4":  # the scale of a group is a multiple of input_scale
        assert torch.equal(weight.rounding(x), x)
    else:
        assert torch.equal(weight.rounding(x), (x * 4).to(torch.float8_e4m3fn).float() / 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_algo": "W4A8_AWQ"}, "quant_algo 'W4A8_AWQ' must be one of FP8, NVFP4"),
        ({"kv_cache_scheme": {"num_bits": 8}}, "the setting kv_cache_scheme"),
        ({"kv_cache_quant_algo": "FP8"}, "the setting kv_cache_quant_algo = 'FP8'"),
    ],
)
def test_unsupported_settings(change: dict[str, Any], message: str) -> None:
    settings, _ = float4()
    with pytest.raises(ModelSourceError, match=message):
        reader.check({**settings, **change})
