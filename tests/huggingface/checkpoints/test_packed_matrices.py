"""Packed matrices and their layers."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx import convert
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.packed_matrices import (
    PackedLinear,
    PackedMatrix,
    packed_rows,
    unpacked_rows,
)
from tests.huggingface.checkpoints.formats import random_codes, stream, values
from tests.tolerances import assert_close


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_codes_of_a_stream(bits: int) -> None:
    codes, scales, _ = random_codes((6, 64), bits, 2)
    words = stream(codes, bits)
    assert packed_rows(words, scales, bits, 64).shape == (6, 2, 32 * bits // 8)
    assert torch.equal(unpacked_rows(words, bits, 64).long(), codes)


def test_shapes_that_contradict() -> None:
    codes, scales, _ = random_codes((6, 64), 4, 2)
    for wrong in (scales[:5], scales[:, :1].expand(6, 3)):
        with pytest.raises(ModelSourceError, match="do not divide into the groups of scales"):
            packed_rows(stream(codes, 4), wrong, 4, 64)


@pytest.mark.parametrize("bias", [None, torch.randn(6)])
@pytest.mark.parametrize("sort", [False, True])
def test_a_layer(sort: bool, bias: torch.Tensor | None) -> None:
    codes, scales, zeros = random_codes((6, 64), 4, 2)
    of = torch.randperm(64) // 32 if sort else None
    packed = packed_rows(stream(codes, 4), scales, 4, 64)
    weight = PackedMatrix(packed, scales, 4, zeros.to(torch.uint8)).sorted_by(of)
    layer, x = PackedLinear(weight, bias), torch.randn(3, 64)
    wanted = torch.nn.functional.linear(x, values(codes, scales, zeros, of), bias)
    assert_close(layer(x).numpy(), wanted.numpy())
    program = convert(layer, x)
    assert_close(program.run(x)[0], wanted.numpy())
    assert sum(program.composites().values()) == 1


def test_groups_of_different_sizes() -> None:
    codes, scales, _ = random_codes((6, 64), 4, 2)
    weight = PackedMatrix(packed_rows(stream(codes, 4), scales, 4, 64), scales, 4)
    of = torch.tensor([1] * 30 + [0] * 34)
    with pytest.raises(ModelSourceError, match="different sizes"):
        weight.sorted_by(of)
    assert weight.sorted_by(torch.arange(64) // 32) is weight
