"""float8 with scales of blocks, of outputs, and of experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints import float8 as reader
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedMatrix
from coreai_onnx.huggingface.checkpoints.settings import Checkpoint
from tests.huggingface.checkpoints.formats import FORMATS, fp8, read_back, values_of


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("fp8")])
def test_every_code_has_its_value(name: str, tmp_path: Path) -> None:
    values, wanted = read_back(tmp_path, reader, FORMATS[name])
    assert torch.equal(values, wanted)


@pytest.mark.parametrize("blocks", [(48, 40), None])
def test_all_experts_of_a_layer(blocks: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    weight = torch.randn(3, 64, 96).to(torch.float8_e4m3fn)
    scales = torch.rand(3, 2, 3) if blocks else torch.rand(3, 1, 1)
    save_file({"e.up": weight, "e.up_scale_inv": scales}, tmp_path / "model.safetensors")
    settings = {"weight_block_size": blocks}
    found = reader.read(Checkpoint.of(tmp_path), "e.up", settings, (64, 96))
    assert found is not None
    rows, columns = blocks or (64, 96)
    wide = scales.repeat_interleave(rows, 1).repeat_interleave(columns, 2)[:, :64, :96]
    for expert, wanted in enumerate(weight.float() * wide):
        codes, factors = found.matrix.codes[expert], found.matrix.scales[expert]
        one = PackedMatrix(codes, factors, 8, palette=found.matrix.palette)
        assert torch.equal(values_of(one), wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fmt": "e5m2"}, "fmt = 'e5m2' must be one of e4m3"),
        ({"expert_dtype": "fp4"}, "expert_dtype = 'fp4' must be one of fp8"),
        ({"modules_to_convert": ["embed"]}, "the setting modules_to_convert"),
        ({"weight_block_size": [40, 48]}, "each block of a weight"),
    ],
)
def test_unsupported_settings(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    settings, write = fp8()
    with pytest.raises(ModelSourceError, match=message):
        read_back(tmp_path, reader, ({**settings, **change}, write))
