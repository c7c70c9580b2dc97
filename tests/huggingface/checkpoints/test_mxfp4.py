"""The format MXFP4: what its bits mean, and checkpoints that are not in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints import mxfp4
from coreai_onnx.huggingface.checkpoints.tensors import Checkpoint
from tests.huggingface.checkpoints.formats import values_of

SHAPE = (8, 64)


def written(folder: Path, **changes: torch.Tensor | None) -> Checkpoint:
    """Write three experts, in two groups of 32 numbers for each output."""
    torch.manual_seed(0)
    tensors: dict[str, Any] = {
        "e_blocks": torch.randint(0, 256, (3, 8, 2, 16)).to(torch.uint8),
        "e_scales": torch.randint(0, 255, (3, 8, 2)).to(torch.uint8),
        "unrelated": torch.zeros(1),
    } | changes
    given = {name: x for name, x in tensors.items() if x is not None}
    save_file(given, folder / "model.safetensors")
    return Checkpoint.of(folder)


def test_numbers_are_those_of_ml_dtypes(tmp_path: Path) -> None:
    tensors = written(tmp_path)
    weight = mxfp4.read(tensors, "e", {}, SHAPE)
    assert weight is not None
    assert weight.rounding is None
    blocks, scales = tensors["e_blocks"].numpy(), tensors["e_scales"].numpy()
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(3, 8, 2, 32)
    powers = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)[..., None]
    wanted = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64) * powers
    for expert in range(3):
        matrix = weight.matrix
        parts = matrix.codes[expert], matrix.scales[expert]
        one = type(matrix)(*parts, matrix.bits, palette=matrix.palette)
        with np.errstate(over="ignore"):  # 6 * 2**127 has no float32
            expected = wanted[expert].reshape(SHAPE).astype(np.float32)
        np.testing.assert_array_equal(values_of(one).numpy(), expected)


def test_experts_in_floating_point_are_left(tmp_path: Path) -> None:
    assert mxfp4.read(written(tmp_path, e_blocks=None), "e", {}, SHAPE) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"e_blocks": torch.zeros(3, 8, 3, 16, dtype=torch.uint8)}, r"blocks \[3, 8, 3, 16\]"),
        ({"e_scales": torch.zeros(3, 8, 1, dtype=torch.uint8)}, r"scales \[3, 8, 1\]"),
        ({"e_scales": None}, "no tensor e_scales"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelSourceError, match=message):
        mxfp4.read(written(tmp_path, **changes), "e", {}, SHAPE)


def test_an_unknown_setting() -> None:
    mxfp4.check({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    with pytest.raises(ModelSourceError, match="rotation"):
        mxfp4.check({"quant_method": "mxfp4", "rotation": "hadamard"})
