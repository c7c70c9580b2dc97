"""Average pooling and the pixel shuffle, against torch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from coreai_onnx.composites.pooling import (
    AVG_POOL_2D,
    AVG_POOL_3D,
    PIXEL_SHUFFLE,
    averages,
    avg_pool_2d,
    avg_pool_3d,
    pixel_shuffle,
)
from tests.support.tolerances import assert_close


def by_hand(x: torch.Tensor, kernel: int, stride: int, pad: int, **options: Any) -> torch.Tensor:
    """Average windows of one axis element by element."""
    size, include = x.shape[0], options["count_include_pad"]
    extra = stride - 1 if options["ceil_mode"] else 0
    count = (size + 2 * pad - kernel + extra) // stride + 1
    if options["ceil_mode"] and (count - 1) * stride >= size + pad:
        count -= 1
    found = []
    for start in (i * stride - pad for i in range(count)):
        inside = [x[i] for i in range(start, start + kernel) if 0 <= i < size]
        padded = len([i for i in range(start, start + kernel) if -pad <= i < size + pad])
        divisor = options["divisor_override"] or (padded if include else len(inside))
        found.append(sum(inside, torch.zeros((), dtype=x.dtype)) / divisor)
    return torch.stack(found)


@pytest.mark.parametrize(
    ("ceil", "include", "divisor"), list(itertools.product((0, 1), (0, 1), (None, 4)))
)
@pytest.mark.parametrize("window", [(3, 2, 1), (2, 3, 1), (3, 1, 0)], ids=str)
def test_counts_what_the_options_say(
    window: tuple[int, int, int], ceil: int, include: int, divisor: int | None
) -> None:
    kernel, stride, pad = window
    x = torch.randn(8, dtype=torch.float64)
    options = {"ceil_mode": ceil, "count_include_pad": include, "divisor_override": divisor}
    result = avg_pool_2d(
        x.reshape(1, 1, 1, 8),
        kernel_size=(1, kernel),
        stride=(1, stride),
        padding=(0, pad, 0, pad),
        **options,
    )
    assert_close(result.flatten(), by_hand(x, kernel, stride, pad, **options))


def test_paddings_of_one_axis_are_equal() -> None:
    with pytest.raises(ValueError, match="the same at both ends"):
        averages(torch.nn.functional.avg_pool2d, torch.ones(1, 1, 4, 4), (2, 2), (1, 1), (0, 0, 1, 0), 0, 1, None)  # fmt: skip  # noqa: E501


def test_windows_must_make_sense() -> None:
    good = {"kernel_size": (2, 2), "stride": (1, 1), "padding": (1, 1, 1, 1)}
    good |= {"divisor_override": None}

    def check(**changed: Any) -> str:
        return AVG_POOL_2D.check({"input": (1, 2, 5, 5)}, {**good, **changed})

    assert check() == ""
    assert check(stride=(1,)) == "stride must have 2 numbers, got 1"
    assert "must be at least 1" in check(kernel_size=(0, 2))
    assert "at most half of kernel_size" in check(padding=(2, 1, 2, 1))
    assert check(divisor_override=0) == "divisor_override is 0"


def test_is_separable_where_windows_are_whole() -> None:
    x = torch.randn(2, 3, 4, 6, 8, dtype=torch.float64)
    result = avg_pool_3d(x, kernel_size=(2, 3, 2), stride=(2, 1, 2))
    planes = x.reshape(2, 12, 6, 8)
    flat = avg_pool_2d(planes, kernel_size=(3, 2), stride=(1, 2)).reshape(2, 3, 4, 4, 4)
    assert_close(result, flat.unflatten(2, (2, 2)).mean(3))


def test_computes_narrow_dtypes_in_float32() -> None:
    x = torch.randn(1, 2, 4, 4, 4).half()
    options = {"kernel_size": (3, 3, 3), "stride": (1, 1, 1), "padding": (1,) * 6}
    expected = avg_pool_3d(x.double(), **options).half()
    assert_close(avg_pool_3d(x, **options), expected)


def test_wants_three_numbers() -> None:
    attributes = {"kernel_size": (2, 2), "stride": (1, 1, 1), "padding": (0,) * 6}
    wrong = AVG_POOL_3D.check({"input": (1, 2, 4, 4, 4)}, {**attributes, "divisor_override": None})
    assert wrong == "kernel_size must have 3 numbers, got 2"


def test_moves_channels_into_rows_and_columns() -> None:
    x = torch.arange(2 * 8 * 3 * 4).reshape(2, 8, 3, 4).float()
    result = pixel_shuffle(x, upscale_factor=2)
    assert result.shape == (2, 2, 6, 8)
    for channel, row, column in ((0, 0, 0), (1, 5, 7), (1, 2, 3)):
        source = channel * 4 + (row % 2) * 2 + column % 2
        assert torch.equal(result[:, channel, row, column], x[:, source, row // 2, column // 2])


def test_channels_must_be_whole_blocks() -> None:
    def check(*dims: int | None, factor: int = 2) -> str:
        return PIXEL_SHUFFLE.check({"input": dims}, {"upscale_factor": factor})

    assert check(1, 8, 3, 4) == check(1, None, 3, 4) == ""
    assert check(1, 6, 3, 4) == (
        "the number of channels must be a multiple of upscale_factor squared (4), got 6"
    )
    assert check(3, 4) == "input must have rank 3 or higher, got 2"
    assert check(1, 8, 3, 4, factor=0) == "upscale_factor must be at least 1, got 0"
