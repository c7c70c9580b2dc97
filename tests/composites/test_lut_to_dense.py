"""Palettized weights against a loop over their elements."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch

from coreai_onnx.composites.compressed_weights import lut_to_dense, streamed
from coreai_onnx.lower.build.composite_checks import CompositeCallError
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close


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
        ([(4, 1), (8,)], {"shape": (8,)}, "lut has rank 2, at least 3"),
        ([(1, 16, 1), (8,)], {}, r"shape is \[\], not one"),
        ([(1, 16, 1), (8,)], {"shape": (9,)}, r"indices has 8 codes, shape \[9\] needs 9"),
        ([(1, 16, 1), (8,)], {"shape": (8,), "bits": 2}, "lut has 16 entries, 2-bit indices"),
        ([(1, 12, 1), (8,)], {"shape": (8,)}, "lut has 12 entries, not a power of two"),
        ([(1, 16, 0), (8,)], {"shape": (8,)}, "vectors without elements"),
        ([(3, 16, 1), (8,)], {"shape": (8,)}, "lut has 3 blocks along axis 0"),
        ([(1, 16, 1), (8,)], {"shape": (8,), "axis": 1}, "axis 1 is out of range"),
        ([(1, 16, 2), (8,), (5,)], {"shape": (8,)}, "scale has 5 blocks along axis 0"),
    ],
)
def test_a_wrong_call_is_an_error(shapes, attributes, message) -> None:
    case = Case("lut_to_dense", tuple(shapes), attributes, {1: torch.uint8}, "wrong")
    with pytest.raises(CompositeCallError, match=message):
        case.model(torch.float32, dynamic=False)
