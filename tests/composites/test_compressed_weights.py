"""Compressed weights: streams of codes, tables, masks and blocks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from coreai_onnx.composites.compressed_weights import (
    blockwise_shift_scale,
    check_blocks,
    check_stream,
    lut_to_dense,
    read_stream,
    sparse_to_dense,
    streamed,
    tiled,
)
from coreai_onnx.lower.nodes.composite_checks import CompositeCallError
from coreai_onnx.model.packed_codes import STREAM_BITS
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close


@pytest.mark.parametrize("bits", STREAM_BITS)
@pytest.mark.parametrize("shape", [(7,), (3, 5, 2), (0, 4)])
def test_a_stream_keeps_codes_of_any_shape(bits: int, shape: tuple[int, ...]) -> None:
    codes = torch.randint(0, 1 << bits, shape, dtype=torch.uint8)
    stream = streamed(codes, bits)
    assert stream.dtype == torch.uint8
    assert stream.numel() == -(-codes.numel() // 8) * bits
    assert_close(read_stream(stream, bits, shape), codes.long())


def test_tiles_repeat_values_over_blocks() -> None:
    blocks = torch.randn(2, 1, 3)
    expected = np.kron(blocks.numpy(), np.ones((2, 5, 1), np.float32))
    assert_close(tiled(blocks, (4, 5, 3)), torch.from_numpy(expected))


def test_a_code_out_of_range_is_an_error() -> None:
    with pytest.raises(ValueError, match="codes of 2 bits are 0 to 3, not 0 to 4"):
        streamed(torch.tensor([4, 0]), 2)


@pytest.mark.parametrize(
    ("size", "attributes", "message"),
    [
        (3, {"bits": 3, "shape": (8,)}, ""),
        (None, {"bits": 3, "shape": (8,)}, ""),
        (3, {"bits": 5, "shape": (4,)}, "bits must be one of"),
        (3, {"bits": 8, "shape": ()}, "shape is (), not one or more sizes"),
        (4, {"bits": 3, "shape": (8,)}, "codes has 4 bytes, 3-bit codes need a multiple of 3"),
        (3, {"bits": 4, "shape": (7,)}, "codes has 6 codes, shape (7,) needs 7"),
    ],
)
def test_a_stream_has_all_codes(size: int | None, attributes, message: str) -> None:
    assert check_stream({"codes": (size,)}, attributes, "codes").startswith(message)
    assert bool(check_stream({"codes": (size,)}, attributes, "codes")) == bool(message)


def test_blocks_divide_the_weight() -> None:
    assert check_blocks((2, None), (4, 5), "scale") == ""
    wrong = check_blocks((2, 3), (4, 5), "scale")
    assert wrong == "scale has 3 blocks along axis 1, which do not divide 5"
    assert check_blocks((0, 1), (4, 5), "scale").startswith("scale has 0 blocks along axis 0")
    assert check_blocks((2,), (4, 5), "lut").startswith("lut has 1 axes of blocks, the weight")


def loop(lut: torch.Tensor, indices: torch.Tensor, axis: int) -> torch.Tensor:
    """Look up one element at a time."""
    shape, vector = list(indices.shape), lut.shape[-1]
    blocks = [size // count for size, count in zip(shape, lut.shape[:-2], strict=True)]
    shape[axis] *= vector
    dense = torch.empty(shape, dtype=lut.dtype)
    for place in itertools.product(*(range(size) for size in shape)):
        at = list(place)
        at[axis] //= vector
        table = lut[tuple(i // block for i, block in zip(at, blocks, strict=True))]
        dense[place] = table[int(indices[tuple(at)]), place[axis] % vector]
    return dense


@pytest.mark.parametrize("bits", [8, 6, 4, 3, 2, 1])
@pytest.mark.parametrize(
    ("shape", "grid", "vector", "axis"),
    [
        ((6, 4), (1, 1), 1, 0),
        ((6, 4), (3, 1), 1, 1),
        ((6, 4), (3, 2), 2, 0),
        ((6, 4), (2, 4), 3, -1),
        ((2, 3, 4), (2, 1, 2), 2, 1),
        ((5,), (5,), 4, 0),
    ],
)
def test_elements_are_those_of_their_table(
    bits: int, shape: Sequence[int], grid: Sequence[int], vector: int, axis: int
) -> None:
    indices = torch.randint(0, 1 << bits, tuple(shape), dtype=torch.uint8)
    lut = torch.randn(*grid, 1 << bits, vector)
    stream = streamed(indices, bits)
    actual = lut_to_dense(lut, stream, bits=bits, shape=shape, axis=axis)
    assert_close(actual, loop(lut, indices, axis))
    scale = torch.rand(*(1 for _ in shape))
    scaled = lut_to_dense(lut, stream, scale, bits=bits, shape=shape, axis=axis)
    assert_close(scaled, loop(lut, indices, axis) * scale)


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ([(4, 1), (8,)], {"shape": (8,)}, "lut must have rank 3 or higher, got 2"),
        ([(1, 16, 1), (8,)], {}, r"shape is \[\], not one"),
        ([(1, 16, 1), (8,)], {"shape": (9,)}, r"indices has 8 codes, shape \[9\] needs 9"),
        ([(1, 16, 1), (8,)], {"shape": (8,), "bits": 2}, "lut has 16 entries, 2-bit indices"),
        ([(1, 12, 1), (8,)], {"shape": (8,)}, "must be a power of two, got 12"),
        ([(1, 16, 0), (8,)], {"shape": (8,)}, "vectors without elements"),
        ([(3, 16, 1), (8,)], {"shape": (8,)}, "lut has 3 blocks along axis 0"),
        ([(1, 16, 1), (8,)], {"shape": (8,), "axis": 1}, "axis 1 is out of range"),
        ([(1, 16, 2), (8,), (5,)], {"shape": (8,)}, "scale has 5 blocks along axis 0"),
    ],
)
def test_a_wrong_call_is_an_error_of_lut_to_dense(shapes, attributes, message) -> None:
    case = Case("lut_to_dense", tuple(shapes), attributes, {1: torch.uint8}, "wrong")
    with pytest.raises(CompositeCallError, match=message):
        case.model(torch.float32, dynamic=False)


@pytest.mark.parametrize("shape", [(11,), (4, 6), (2, 3, 5)])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_where_bits_are_set(
    shape: tuple[int, ...], share: float, dtype: torch.dtype
) -> None:
    mask = torch.rand(shape) < share
    values = torch.randn(int(mask.sum())).to(dtype)
    expected = torch.zeros(shape, dtype=dtype)
    expected[mask] = values
    assert_close(sparse_to_dense(values, streamed(mask, 1), shape=shape), expected)


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ([(4,), (1,)], {}, r"shape is \[\], not one"),
        ([(4,), (1,)], {"shape": (3, 3)}, r"mask has 8 codes, shape \[3, 3\] needs 9"),
        ([(2, 2), (1,)], {"shape": (8,)}, "more dims than C"),
    ],
)
def test_a_wrong_call_is_an_error_of_sparse_to_dense(shapes, attributes, message) -> None:
    case = Case("sparse_to_dense", tuple(shapes), attributes, {1: torch.uint8}, "wrong")
    with pytest.raises(CompositeCallError, match=message):
        case.model(torch.float32, dynamic=False)


def spread(blocks: torch.Tensor) -> torch.Tensor:
    """Return ``[2, 1]`` blocks over ``[4, 6]``."""
    return torch.from_numpy(np.kron(blocks.numpy(), np.ones((2, 6), blocks.numpy().dtype)))


@pytest.mark.parametrize("bits", [8, 6, 4, 3, 2, 1])
@pytest.mark.parametrize("signed", [False, True])
def test_the_formulas_hold(bits: int, signed: bool) -> None:
    least = -(1 << (bits - 1)) if signed else 0
    x = torch.randint(least, least + (1 << bits), (4, 6))
    scale, minval = torch.rand(2, 1), torch.randn(2, 1)
    zeros = torch.randint(least, least + (1 << bits), (2, 1), dtype=torch.int16)
    codes = streamed(x - least, bits)
    layout = {"bits": bits, "shape": (4, 6), "minimum": least}
    assert_close(blockwise_shift_scale(scale, codes, **layout), x * spread(scale))
    assert_close(
        blockwise_shift_scale(scale, codes, zeros, **layout), (x - spread(zeros)) * spread(scale)
    )
    actual = blockwise_shift_scale(scale, codes, None, minval, **layout)
    assert_close(actual, (x - least) * spread(scale) + spread(minval))


def test_the_result_is_rounded_once() -> None:
    scale, minval = torch.tensor([0.1]).half(), torch.tensor([0.3]).half()
    codes = torch.arange(256, dtype=torch.uint8)
    actual = blockwise_shift_scale(scale, codes, None, minval, shape=(256,))
    assert_close(actual, (torch.arange(256) * scale.float() + minval.float()).half())


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        ([(2, 1), (8,)], {"shape": (8,)}, "scale has 2 axes of blocks, the weight has 1 axes"),
        ([(3,), (8,)], {"shape": (8,)}, "scale has 3 blocks along axis 0, which do not divide 8"),
        ([(1,), (8,)], {"shape": (8,), "bits": 7}, "bits must be one of"),
        ([(2,), (8,), (1,)], {"shape": (8,)}, r"zero_point has shape \[1\], scale \[2\]"),
        ([(2,), (8,), (2,), (2,)], {"shape": (8,)}, "zero_point and minval exclude each other"),
    ],
)
def test_a_wrong_call_is_an_error_of_blockwise_shift_scale(shapes, attributes, message) -> None:
    case = Case("blockwise_shift_scale", tuple(shapes), attributes, {1: torch.uint8}, "wrong")
    with pytest.raises(CompositeCallError, match=message):
        case.model(torch.float32, dynamic=False)
