"""Lowerings of convolutions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lower.checking import check, op_types

BATCH = torch.export.Dim("batch")
CONVS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"stride": 2},
    {"padding": 1},
    {"dilation": 2, "padding": 2},
    {"groups": 2},
    {"stride": 2, "padding": 1, "dilation": 2, "groups": 2},
    {"padding": "same"},
    {"padding": "same", "dilation": 2},
    {"padding": "valid", "stride": 2},
]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return values of moderate size in a dtype."""
    return torch.randn(shape).mul(0.5 if dtype.is_floating_point else 4).to(dtype)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("decompose", [False, True])
def test_convolution(axes: int, options: dict[str, Any], decompose: bool) -> None:
    weight = values(6, 4 // options.get("groups", 1), *[3] * axes)
    args = values(2, 4, *[7] * axes), weight, values(6)
    model = check(lambda *x: CONVS[axes](*x, **options), *args, decompose=decompose)
    assert op_types(model) == ["Conv"]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_even_kernels_pad_more_at_the_end() -> None:
    check(lambda x, w: F.conv1d(x, w, padding="same"), values(1, 2, 7), values(3, 2, 4))
    check(lambda x, w: F.conv2d(x, w, padding="same"), values(1, 2, 7, 6), values(3, 2, 4, 3))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_results_of_transposed_convolutions_are_named_after_them(axes: int) -> None:
    args = values(2, 4, *[7] * axes), values(4, 2, *[3] * axes)
    model = check(lambda *x: -TRANSPOSED[axes](*x), *args)
    assert model.graph.node("ConvTranspose").outputs[0].name == f"conv_transpose{axes}d"


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"stride": 3, "output_padding": 2},
        {"dilation": 2},
        {"dilation": 3, "output_padding": 2},
        {"groups": 2},
        {"stride": 2, "padding": 2, "dilation": 2, "groups": 2, "output_padding": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_transposed(axes: int, options: dict[str, Any], dtype: torch.dtype) -> None:
    weight = values(4, 6 // options.get("groups", 1), *[3] * axes, dtype=dtype)
    args = values(2, 4, *[5] * axes, dtype=dtype), weight, values(6, dtype=dtype)
    check(lambda *x: TRANSPOSED[axes](*x, **options), *args)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_other_dtypes(dtype: torch.dtype, options: dict[str, Any]) -> None:
    weight = values(6, 4 // options.get("groups", 1), 3, 3, dtype=dtype)
    args = values(2, 4, 7, 7, dtype=dtype), weight, values(6, dtype=dtype)
    check(lambda *x: F.conv2d(*x, **options), *args)


def test_integers_are_exact() -> None:
    x = torch.tensor([[[2**53 + 1, 1, 2]]])
    check(F.conv1d, x, torch.tensor([[[1, 3]]]))
    check(lambda x, w: F.conv_transpose1d(x, w, stride=2), x, torch.tensor([[[1, 3]]]))


@pytest.mark.parametrize("function", [F.conv2d, F.conv_transpose2d])
def test_without_a_batch(function: Any) -> None:
    check(function, values(4, 7, 7), values(4, 4, 3, 3))


@pytest.mark.parametrize("function", [F.conv2d, F.conv_transpose2d])
def test_an_empty_batch(function: Any) -> None:
    check(function, values(0, 4, 7, 7), values(4, 4, 3, 3), values(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dynamic_sizes(dtype: torch.dtype) -> None:
    check(
        lambda x, w: (F.conv2d(x, w, stride=2, padding=1), F.conv_transpose2d(x, w, stride=2)),
        values(2, 4, 7, 8, dtype=dtype),
        values(4, 4, 3, 3, dtype=dtype),
        dynamic_shapes=(
            {0: BATCH, 2: torch.export.Dim("height", min=4), 3: torch.export.Dim("width", min=4)},
            None,
        ),
        others=[(values(3, 4, 5, 11, dtype=dtype), values(4, 4, 3, 3, dtype=dtype))],
    )


def test_conv_tbc() -> None:
    check(
        lambda x, w, b: torch.conv_tbc(x, w, b, 1),
        values(7, 2, 4),
        values(3, 4, 5),
        values(5),
    )


def test_a_transposed_kernel_of_any_size_with_much_output_padding() -> None:
    sizes = {2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO}
    others = [(values(1, 2, 6, 5), values(2, 3, 4, 2))]
    for padding in (0, 2):
        check(
            lambda x, w, p=padding: F.conv_transpose2d(x, w, None, 2, p, 2, dilation=3),
            values(1, 2, 4, 4),
            values(2, 3, 3, 3),
            dynamic_shapes=(sizes, sizes),
            others=others,
        )
