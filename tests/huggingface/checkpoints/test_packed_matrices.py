"""Packed matrices and their layers."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx import convert
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.packed_matrices import (
    CheckpointModule,
    PackedLinear,
    PackedMatrix,
    of_stream,
    unpacked_rows,
)
from tests.huggingface.checkpoints.formats import random_codes, stream, values, values_of
from tests.support.tolerances import assert_close


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("columns", [64, 85, 96])
def test_codes_of_a_stream(bits: int, columns: int) -> None:
    codes, _, _ = random_codes((6, columns), bits, 1)
    assert torch.equal(unpacked_rows(stream(codes, bits), bits, columns).long(), codes)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize(("columns", "group"), [(64, 32), (64, 24), (85, 32), (90, 12), (64, 128)])
def test_groups_of_any_size(bits: int, columns: int, group: int) -> None:
    """A weight keeps its values, and its codes where a kernel has them in whole bytes."""
    codes, scales, zeros = random_codes((6, columns), bits, -(-columns // group))
    of = torch.arange(columns) // group
    words = stream(codes, bits)
    for given in (None, zeros.to(torch.uint8)):
        weight = of_stream(words, scales, bits, columns, group, zero_points=given)
        wanted = values(codes, scales, 1 << (bits - 1) if given is None else zeros, of)
        assert torch.equal(values_of(weight), wanted)
        assert weight.bits == bits or bits in (5, 6, 7) or weight.group_size * bits % 8
    palette = torch.randn(1 << bits)
    weight = of_stream(words, scales, bits, columns, group, palette=palette)
    assert torch.equal(values_of(weight), palette[codes] * scales.float()[:, of])


def test_shapes_that_contradict() -> None:
    codes, scales, _ = random_codes((6, 64), 4, 2)
    for wrong in (scales[:5], scales[:, :1].expand(6, 3)):
        with pytest.raises(
            ModelSourceError, match=r"scales must be \[6, .\] for 64 inputs in groups"
        ):
            of_stream(stream(codes, 4), wrong, 4, 64)


@pytest.mark.parametrize("bias", [None, torch.randn(6)])
@pytest.mark.parametrize("sort", [False, True])
def test_a_layer(sort: bool, bias: torch.Tensor | None) -> None:
    codes, scales, zeros = random_codes((6, 64), 4, 2)
    of = torch.randperm(64) // 32 if sort else None
    stored = zeros.to(torch.uint8)
    weight = of_stream(stream(codes, 4), scales, 4, 64, zero_points=stored, groups=of)
    layer, x = PackedLinear(weight, bias), torch.randn(3, 64)
    wanted = torch.nn.functional.linear(x, values(codes, scales, zeros, of), bias)
    assert_close(layer(x).numpy(), wanted.numpy())
    program = convert(layer, x)
    assert_close(program.run(x)[0], wanted.numpy())
    assert sum(program.composites().values()) == 1


def test_sorted_groups_of_different_sizes() -> None:
    codes, scales, _ = random_codes((6, 64), 4, 2)
    of = torch.tensor([1] * 30 + [0] * 34)
    weight = of_stream(stream(codes, 4), scales, 4, 64, groups=of)
    assert torch.equal(values_of(weight), values(codes, scales, 8, of))
    assert weight.group_size == 2


@pytest.mark.parametrize(("count", "dtype"), [(256, torch.uint8), (257, torch.float32)])
def test_palettes_have_scales_of_256_values_as_bytes(count: int, dtype: torch.dtype) -> None:
    scales = (torch.randperm(4 * 64 * 8) % count - 100.5).view(4, 64, 8)  # of experts
    codes = torch.zeros(4, 64, 8, 16, dtype=torch.uint8)
    module = CheckpointModule()
    module.hold_weight(PackedMatrix(codes, scales, 4, palette=torch.arange(16.0)), "up_")
    assert dict(module.named_buffers())["up_scales"].dtype == dtype
    assert torch.equal(module.weight_parts("up_")[1], scales)
