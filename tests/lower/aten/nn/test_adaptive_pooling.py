"""Lowerings of pooling to a given size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lower.checking import check, op_types

AVERAGE = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
MAX = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 7])
@pytest.mark.parametrize("decompose", [False, True])
def test_averages(axes: int, size: int, decompose: bool) -> None:
    check(lambda x: AVERAGE[axes](x, size), torch.randn(2, 3, *[6] * axes), decompose=decompose)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 7])
@pytest.mark.parametrize("decompose", [False, True])
def test_maxima(axes: int, size: int, decompose: bool) -> None:
    check(
        lambda x: MAX[axes](x, size, return_indices=True),
        torch.randn(2, 3, *[6] * axes),
        decompose=decompose,
    )


def test_one_value_per_channel_is_one_node() -> None:
    model = check(torch.nn.AdaptiveAvgPool2d(1), torch.randn(2, 3, 5, 6))
    assert op_types(model) == ["GlobalAveragePool"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 7, 6).to(dtype)
    for size in ((1, 1), (3, 3), (7, None)):
        check(lambda x, s=size: F.adaptive_avg_pool2d(x, s), x)
        check(lambda x, s=size: F.adaptive_max_pool2d(x, s), x)


def test_infinities_stay_in_their_windows() -> None:
    x = torch.randn(1, 1, 7)
    x[0, 0, 3] = torch.inf
    check(lambda x: F.adaptive_avg_pool1d(x, 3), x)


def test_without_a_batch() -> None:
    check(lambda x: F.adaptive_avg_pool2d(x, (2, 5)), torch.randn(3, 6, 7))
    check(lambda x: F.adaptive_max_pool2d(x, (2, 5)), torch.randn(3, 6, 7))


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 4)])
def test_dynamic_sizes(size: tuple[int, int]) -> None:
    def pools(x: torch.Tensor) -> Any:
        largest = F.adaptive_max_pool2d(x, size, return_indices=True)
        return F.adaptive_avg_pool2d(x, size), largest

    height, width = torch.export.Dim("height", min=3), torch.export.Dim("width", min=3)
    check(
        pools,
        torch.randn(2, 3, 6, 8),
        dynamic_shapes=({2: height, 3: width},),
        others=[(torch.randn(2, 3, 9, 7),), (torch.randn(2, 3, 5, 4),)],
    )
