"""Streams of codes and tiles of blocks against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coreai_onnx.composites.compressed_weights import (
    check_blocks,
    check_stream,
    read_stream,
    streamed,
    tiled,
)
from coreai_onnx.model.packed_codes import STREAM_BITS
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
        (3, {"bits": 5, "shape": (4,)}, "bits is 5, not one of"),
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
