"""Lowerings of maxima and averages over windows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lower.checking import check, op_types

MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
BATCH = torch.export.Dim("batch")


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return distinct values (as far as the dtype has them), half of them negative."""
    count = int(torch.tensor(shape).prod())
    order = torch.randperm(count) - count // 2
    return (order * 0.125 if dtype.is_floating_point else order % 200 - 100).to(dtype).view(shape)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 2, "stride": 3, "ceil_mode": True},
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
        {"kernel_size": 2, "dilation": 2, "stride": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("decompose", [False, True])
def test_maxima(axes: int, options: dict[str, Any], decompose: bool) -> None:
    x = values(2, 3, *[6] * axes)
    check(lambda x: MAX[axes](x, **options), x, decompose=decompose)
    check(lambda x: MAX[axes](x, **options, return_indices=True), x, decompose=decompose)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_maxima_of_other_dtypes(dtype: torch.dtype, ceil_mode: bool) -> None:
    def pool(x: torch.Tensor) -> Any:
        return F.max_pool2d(x, 3, 2, 1, ceil_mode=ceil_mode, return_indices=True)

    x = values(1, 2, 5, 6, dtype=dtype)
    check(pool, x)
    check(lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=ceil_mode), x)


def test_maxima_of_nan_and_infinities() -> None:
    x = values(1, 1, 4, 4)
    x[0, 0, 1, 1], x[0, 0, 2:, 2:] = torch.nan, -torch.inf
    check(lambda x: F.max_pool2d(x, 2), x)


def test_maxima_without_a_batch() -> None:
    check(lambda x: F.max_pool2d(x, 2, return_indices=True), values(3, 6, 6))
    check(lambda x: F.max_pool1d(x, 2), values(3, 6))


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
        {"kernel_size": 2, "stride": 3, "ceil_mode": True, "count_include_pad": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("decompose", [False, True])
def test_averages(axes: int, options: dict[str, Any], decompose: bool) -> None:
    x = values(2, 3, *[6] * axes)
    model = check(lambda x: AVERAGE[axes](x, **options), x, decompose=decompose)
    assert "AveragePool" in op_types(model)


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("divisor", [None, 1, 5, -3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("include", [False, True])
def test_averages_with_a_divisor(
    ceil_mode: bool, divisor: int | None, dtype: torch.dtype, include: bool
) -> None:
    x = values(2, 3, 6, 5, dtype=dtype)
    check(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode, include, divisor), x)
    if dtype in (torch.float32, torch.float64):
        x = values(2, 3, 6, 5, 4, dtype=dtype)
        check(lambda x: F.avg_pool3d(x, 3, 2, 1, ceil_mode, include, divisor), x)


def test_lp_pool() -> None:
    check(lambda x: F.lp_pool2d(x, 2.0, 3, stride=2), values(1, 2, 7, 7).abs())
    check(lambda x: F.lp_pool1d(x, 3.0, 2), values(1, 2, 7).abs())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dynamic_sizes(dtype: torch.dtype) -> None:
    def pools(x: torch.Tensor) -> Any:
        return (
            F.max_pool2d(x, 3, 2, 1, return_indices=True),
            F.avg_pool2d(x, 3, 2, 1),
        )

    dims = {0: BATCH, 2: torch.export.Dim("height", min=5), 3: torch.export.Dim("width", min=5)}
    check(
        pools,
        values(2, 3, 6, 8, dtype=dtype),
        dynamic_shapes=(dims,),
        others=[(values(1, 3, 9, 7, dtype=dtype),), (values(3, 3, 6, 10, dtype=dtype),)],
    )


def test_an_empty_batch() -> None:
    check(lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 2)), values(0, 3, 6, 6))


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d])
def test_zeros_around_negative_values(pool: Any) -> None:
    """onnxruntime fuses the zeros with the padding of the pool."""
    x = -values(2, 3, 7, 8).abs() - 1
    check(lambda x: pool(F.pad(x, (1, 2, 1, 1)), 3, 2), x)
    check(lambda x: pool(F.pad(x, (1, 2, 1, 1)), 3, 2), x[0])
