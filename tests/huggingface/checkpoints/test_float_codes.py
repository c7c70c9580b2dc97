"""Tests of codes of small floats: FP8, FP4, MXFP4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from coreai_onnx.composites.few_bit_weights import numbers_of
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints import float_codes as mxfp4
from coreai_onnx.huggingface.checkpoints.float_codes import (
    float4_matrix,
    float8_matrix,
    scale_values,
)
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedLinear
from coreai_onnx.huggingface.checkpoints.settings import Checkpoint
from coreai_onnx.model.weight_formats import E2M1
from tests.huggingface.checkpoints.formats import values_of
from tests.huggingface.checkpoints.test_byte_linear import STATIC, checked
from tests.huggingface.checkpoints.test_rounded_activations import rounding

GENERATOR = torch.Generator().manual_seed(0)
VALUES = torch.randn(48, 64, generator=GENERATOR).to(torch.float8_e4m3fn)


def spread(scales: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Return the scale of each element of a weight."""
    wide = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return wide[: VALUES.shape[0], : VALUES.shape[1]]


@pytest.mark.parametrize(
    ("counts", "block", "given"),
    [
        ((1, 1), (48, 64), None),
        ((48, 1), (1, 64), None),
        ((48, 2), (1, 32), None),
        ((3, 2), (16, 32), None),
        ((2, 3), (32, 24), [32, 24]),
        ((1, 1), (128, 128), [128, 128]),
        ((2, 2), (25, 33), (25, 33)),
    ],
)
def test_scales_of_blocks(counts: tuple[int, int], block: tuple[int, int], given: Any) -> None:
    scales = torch.rand(counts, generator=GENERATOR)
    found = values_of(float8_matrix(VALUES, scales, given))
    assert torch.equal(found, VALUES.float() * spread(scales, block))


def test_a_single_scale() -> None:
    for scale in (torch.tensor(0.5), torch.tensor([0.5])):
        assert torch.equal(values_of(float8_matrix(VALUES, scale)), VALUES.float() / 2)


@pytest.mark.parametrize("settings", [None, {}, STATIC])
def test_a_layer_of_float8(settings: dict[str, Any] | None) -> None:
    scales = torch.rand(48, 2, generator=GENERATOR)
    given = None if settings is None else rounding(type="float", **settings)
    layer = PackedLinear(float8_matrix(VALUES, scales), rounding=given)
    checked(layer, VALUES.float() * spread(scales, (1, 32)))


def test_blocks_that_do_not_divide() -> None:
    for scales, given in ((torch.ones(5, 1), None), (torch.ones(2, 2), (16, 32))):
        with pytest.raises(ModelSourceError, match=r"each block of a weight \[48, 64\], got"):
            float8_matrix(VALUES, scales, given)
    with pytest.raises(ModelSourceError, match=r"float8_e4m3fn, got torch\.float8_e5m2"):
        float8_matrix(VALUES.to(torch.float8_e5m2), torch.ones(1))


def test_codes_are_e2m1() -> None:
    codes = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn)
    np.testing.assert_array_equal(numbers_of(E2M1).numpy(), codes.astype(np.float32))


def test_the_first_of_two_codes_is_in_the_low_bits() -> None:
    packed = torch.tensor([[0x21, 0x43, 0xF5, 0x07]], dtype=torch.uint8)
    found = values_of(float4_matrix(packed, torch.tensor([[2.0, 4.0]]), 8))
    assert found.tolist() == [[1, 2, 3, 4, 12, -24, 24, 0]]


def test_exponents() -> None:
    exponents = torch.tensor([0, 1, 120, 127, 130], dtype=torch.uint8)
    wanted = torch.tensor([2.0**-127, 2.0**-126, 2.0**-7, 1.0, 8.0])
    assert torch.equal(scale_values(exponents), wanted)
    assert torch.equal(scale_values(exponents.view(torch.float8_e8m0fnu)), wanted)
    halves = torch.rand(3).half()
    assert scale_values(halves) is halves
    small = torch.rand(3).to(torch.float8_e4m3fn)
    assert torch.equal(scale_values(small), small.float())


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
