"""Which way of resizing is taken."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from coreai_onnx.lower.aten.nn.antialiasing import antialias_weights
from coreai_onnx.lower.aten.nn.resize import sources, taps
from tests.lower.checking import check, op_types


def test_nearest_by_a_broken_factor_is_gathered_from_torchs_own_places() -> None:
    model = check(lambda x: F.interpolate(x, size=6), torch.rand(1, 1, 10))
    assert op_types(model) == ["Gather"]


def test_the_same_size_is_nothing() -> None:
    assert op_types(check(lambda x: F.interpolate(x, size=5) + 1, torch.rand(1, 1, 5))) == ["Add"]


def test_antialiasing_is_two_products() -> None:
    model = check(
        lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True), torch.rand(1, 1, 8, 8)
    )
    assert op_types(model) == ["MatMul", "MatMul"]


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(3, 4), (1, 20), (8, 10)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_antialiasing_of_an_unknown_height(
    mode: str, align: bool, size: tuple[int, int], dtype: torch.dtype
) -> None:
    check(
        lambda x: F.interpolate(x, size, mode=mode, align_corners=align, antialias=True),
        torch.rand(1, 2, 8, 10, dtype=dtype),
        others=[(torch.rand(1, 2, 5, 10, dtype=dtype),)],
        dynamic_shapes=({2: torch.export.Dim("height", min=4)},),
    )


@pytest.mark.parametrize("factor", [0.5, 0.3, 0.6, 1.7])
@pytest.mark.parametrize("kept", [False, True])
def test_antialiasing_by_a_factor_of_unknown_sizes(factor: float, kept: bool) -> None:
    check(
        lambda x: F.interpolate(
            x,
            scale_factor=factor,
            mode="bilinear",
            antialias=True,
            recompute_scale_factor=not kept,
        ),
        torch.rand(1, 2, 20, 30),
        others=[(torch.rand(1, 2, 17, 41),)],
        dynamic_shapes=(
            {2: torch.export.Dim("height", min=9), 3: torch.export.Dim("width", min=9)},
        ),
    )


@pytest.mark.parametrize(("mode", "count"), [("linear", 2), ("cubic", 4)])
@pytest.mark.parametrize("align", [False, True])
def test_weights_sum_to_one_and_places_are_inside(mode: str, count: int, align: bool) -> None:
    places, weights = taps(sources(5, 12, None, align_corners=align), 5, mode)
    assert places.shape == weights.shape == (12, count)
    assert places.min() == 0
    assert places.max() == 4
    torch.testing.assert_close(weights.sum(1), torch.ones(12, dtype=torch.float64))


def test_aligned_corners_stay() -> None:
    assert sources(5, 9, None, align_corners=True).tolist()[::8] == [0.0, 4.0]


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialiased_weights_sum_to_one(mode: str) -> None:
    weights = antialias_weights(9, 4, None, mode, align_corners=False)
    assert weights.shape == (4, 9)
    torch.testing.assert_close(weights.sum(1), torch.ones(4, dtype=torch.float64))


BATCH = torch.export.Dim("batch")


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("opset", [18, 23])
def test_grid_sample(mode: str, padding: str, align: bool, opset: int) -> None:
    x, grid = torch.randn(2, 3, 5, 6), torch.rand(2, 4, 7, 2) * 3 - 1.5
    check(
        lambda x, g: F.grid_sample(x, g, mode, padding, align_corners=align), x, grid, opset=opset
    )


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [False, True])
def test_grid_sample_of_a_volume(mode: str, padding: str, align: bool) -> None:
    x, grid = torch.randn(2, 3, 5, 6, 4), torch.rand(2, 4, 7, 3, 3) * 3 - 1.5
    check(lambda x, g: F.grid_sample(x, g, mode, padding, align_corners=align), x, grid)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("decompose", [False, True])
def test_affine_grid(align: bool, decompose: bool) -> None:
    check(
        lambda t: F.affine_grid(t, [2, 3, 4, 5], align_corners=align),
        torch.randn(2, 2, 3),
        decompose=decompose,
    )
    check(
        lambda t: F.affine_grid(t, [2, 3, 4, 5, 6], align_corners=align),
        torch.randn(2, 3, 4),
        decompose=decompose,
    )


@pytest.mark.parametrize("shape", [(2, 12, 3, 4), (12, 3, 4), (2, 2, 12, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_pixel_shuffle(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randint(0, 9, shape).to(dtype)
    check(lambda x: F.pixel_shuffle(x, 2), x)
    wide = torch.randint(0, 9, (*shape[:-3], 3, 4, 6)).to(dtype)
    check(lambda x: F.pixel_unshuffle(x, 2), wide)


def test_pixel_shuffle_is_one_node_and_takes_any_size() -> None:
    dims = {0: BATCH, 2: torch.export.Dim("height"), 3: torch.export.Dim("width")}
    model = check(
        lambda x: F.pixel_shuffle(x, 2),
        torch.randn(2, 8, 3, 4),
        dynamic_shapes=(dims,),
        others=[(torch.randn(1, 8, 5, 2),)],
    )
    assert op_types(model) == ["DepthToSpace"]


def test_channel_shuffle() -> None:
    check(lambda x: F.channel_shuffle(x, 3), torch.randn(2, 6, 3, 4))


def test_pixel_shuffle_of_integers_of_any_size() -> None:
    shapes = (dict.fromkeys(range(4), torch.export.Dim.AUTO),)
    x, other = torch.arange(96).reshape(1, 8, 3, 4), torch.arange(24).reshape(1, 4, 2, 3)
    x = x.repeat(2, 1, 1, 1)
    check(lambda x: F.pixel_shuffle(x, 2), x, dynamic_shapes=shapes, others=[(other,)])
