"""The pixel shuffle, place by place."""

from __future__ import annotations

import torch

from coreai_onnx.composites.pooling import PIXEL_SHUFFLE as COMPOSITE
from coreai_onnx.composites.pooling import pixel_shuffle


def test_moves_channels_into_rows_and_columns() -> None:
    x = torch.arange(2 * 8 * 3 * 4).reshape(2, 8, 3, 4).float()
    result = pixel_shuffle(x, upscale_factor=2)
    assert result.shape == (2, 2, 6, 8)
    for channel, row, column in ((0, 0, 0), (1, 5, 7), (1, 2, 3)):
        source = channel * 4 + (row % 2) * 2 + column % 2
        assert torch.equal(result[:, channel, row, column], x[:, source, row // 2, column // 2])


def test_channels_must_be_whole_blocks() -> None:
    def check(*dims: int | None, factor: int = 2) -> str:
        return COMPOSITE.check({"input": dims}, {"upscale_factor": factor})

    assert check(1, 8, 3, 4) == check(1, None, 3, 4) == ""
    assert check(1, 6, 3, 4) == (
        "the number of channels is 6, not a multiple of upscale_factor squared, 4"
    )
    assert check(3, 4) == "input has rank 2, at least 3 are needed"
    assert check(1, 8, 3, 4, factor=0) == "upscale_factor is 0, at least 1 is needed"
