"""Lowerings of every way of resizing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.lower.checking import check, op_types

BATCH = torch.export.Dim("batch")
MODES = ["nearest", "nearest-exact", "bilinear", "bicubic"]
SPACE = {"nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "linear": (1,), "trilinear": (3,)}


def image(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return values in [0, 1)."""
    return torch.rand(shape).to(dtype)


SIZES: list[dict[str, Any]] = [
    {"size": (10, 14)},
    {"size": (7, 3)},
    {"size": (1, 1)},
    {"size": (5, 7)},
    {"scale_factor": 2},
    {"scale_factor": (1.7, 0.6)},
    {"scale_factor": 1.5, "recompute_scale_factor": True},
]
IMAGES = [
    *({"mode": mode, **size} for mode in MODES for size in SIZES),
    *(
        {"mode": m, "align_corners": True, **size}
        for m in ("bilinear", "bicubic")
        for size in SIZES
    ),
    *({"mode": m, "size": s} for m in ("nearest", "nearest-exact") for s in ((9, 15), (11, 13))),
]


@pytest.mark.parametrize("options", IMAGES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_images(options: dict[str, Any], dtype: torch.dtype) -> None:
    check(lambda x: F.interpolate(x, **options), image(2, 3, 5, 7, dtype=dtype))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "trilinear"])
@pytest.mark.parametrize("scale", [2.0, 0.5, 1.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_signals_and_volumes(mode: str, scale: float, dtype: torch.dtype) -> None:
    for axes in SPACE[mode]:
        x = image(1, 2, *(4, 5, 6)[:axes], dtype=dtype)
        check(lambda x: F.interpolate(x, scale_factor=scale, mode=mode), x)
        check(lambda x, n=axes: F.interpolate(x, size=(7, 3, 4)[:n], mode=mode), x)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(3, 4), (11, 13), (4, 20)])
@pytest.mark.parametrize("align", [False, True])
def test_antialiasing(mode: str, size: tuple[int, int], align: bool) -> None:
    check(
        lambda x: F.interpolate(x, size, mode=mode, align_corners=align, antialias=True),
        image(1, 2, 8, 10),
    )


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_dtypes(mode: str, dtype: torch.dtype) -> None:
    check(lambda x: F.interpolate(x, (8, 9), mode=mode), image(1, 2, 4, 3, dtype=dtype))


def test_nearest_of_bytes() -> None:
    x = torch.randint(0, 255, (1, 2, 4, 3), dtype=torch.uint8)
    check(lambda x: F.interpolate(x, scale_factor=2), x)
    check(lambda x: F.interpolate(x, size=(7, 5)), x)


def test_the_usual_upsampling_is_one_node() -> None:
    for mode in ("nearest", "bilinear"):
        model = check(torch.nn.Upsample(scale_factor=2, mode=mode), image(1, 2, 4, 3))
        assert op_types(model) == ["Resize"]


DYNAMIC = [
    (mode, scale, align)
    for mode in MODES
    for scale in (2, 1.5, 0.5)
    for align in ([None] if "nearest" in mode else [None, True])
]


@pytest.mark.parametrize(
    ("mode", "scale", "align", "decompose"),
    [
        *((*case, False) for case in DYNAMIC),
        *((*case, True) for case in DYNAMIC if case[1] == 1.5),  # torch decomposes all alike
    ],
)
def test_dynamic_sizes(mode: str, scale: float, align: bool | None, decompose: bool) -> None:
    dims = {0: BATCH, 2: torch.export.Dim("height", min=4), 3: torch.export.Dim("width", min=4)}
    check(
        lambda x: F.interpolate(x, scale_factor=scale, mode=mode, align_corners=align),
        image(2, 3, 6, 8),
        dynamic_shapes=(dims,),
        others=[(image(1, 3, 9, 5),), (image(3, 3, 4, 10),)],
        decompose=decompose,
    )


@pytest.mark.parametrize(("mode", "align"), sorted({(m, a) for m, _, a in DYNAMIC}, key=str))
@pytest.mark.parametrize("decompose", [False, True])
def test_the_size_of_another_image(mode: str, align: bool | None, decompose: bool) -> None:
    height, width = torch.export.Dim("height", min=4), torch.export.Dim("width", min=4)
    check(
        lambda x, y: F.interpolate(x, size=y.shape[2:], mode=mode, align_corners=align),
        image(2, 3, 6, 8),
        image(2, 3, 12, 16),
        dynamic_shapes=(None, {2: height, 3: width}),
        others=[(image(2, 3, 6, 8), image(2, 3, 18, 8))],
        decompose=decompose,
    )
