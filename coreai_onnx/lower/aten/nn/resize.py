"""Resizing of images and signals: torch's upsampling ops, one per filter and number of axes."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F

from coreai_onnx.errors import LoweringError
from coreai_onnx.lower.aten.nn.separable import (
    CUBIC,
    LINEAR,
    antialias_weights,
    resample,
    sources,
    taps,
)
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Dim, Value, as_dim, dims_of, dtype_of, is_static, rank_of
from coreai_onnx.lower.walk.registry import lowers

_SCALABLE = (torch.float32, torch.float16, torch.bfloat16)


def upsample(
    op: OpBuilder,
    self: Value,
    output_size: Sequence[Dim] | None,
    scale_factors: Sequence[float] | None = None,
    *,
    mode: str,
    align_corners: bool = False,
    antialias: bool = False,
    exact: bool = False,
    scales: float | None = None,
    scales_d: float | None = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Value:
    """The image in other sizes, by sizes, factors, or both."""
    axes = rank_of(self) - 2
    # An op has the parameters of its own axes only, which are the last ones.
    named = [scales] if axes == 1 else [scales_d, scales_h, scales_w][-axes:]
    return resize(
        op,
        self,
        output_size,
        scale_factors or named,
        mode,
        align_corners=align_corners,
        antialias=antialias,
        exact=exact,
    )


for _name, _options in {
    "upsample_nearest1d": {"mode": "nearest"},
    "upsample_nearest2d": {"mode": "nearest"},
    "upsample_nearest3d": {"mode": "nearest"},
    "_upsample_nearest_exact1d": {"mode": "nearest", "exact": True},
    "_upsample_nearest_exact2d": {"mode": "nearest", "exact": True},
    "_upsample_nearest_exact3d": {"mode": "nearest", "exact": True},
    "upsample_linear1d": {"mode": "linear"},
    "upsample_bilinear2d": {"mode": "linear"},
    "upsample_trilinear3d": {"mode": "linear"},
    "upsample_bicubic2d": {"mode": "cubic"},
    "_upsample_bilinear2d_aa": {"mode": "linear", "antialias": True},
    "_upsample_bicubic2d_aa": {"mode": "cubic", "antialias": True},
}.items():
    # ``vec`` takes sizes or a list of factors, ``default`` sizes and one factor per axis.
    lowers(f"aten.{_name}.default", **_options)(upsample)
    lowers(f"aten.{_name}.vec", renamed={"self": "input"}, **_options)(upsample)


def resize(
    op: OpBuilder,
    x: Value,
    output_size: Sequence[Dim] | None,
    scales: Sequence[float | None] | None,
    mode: str,
    *,
    align_corners: bool = False,
    antialias: bool = False,
    exact: bool = False,
) -> Value:
    """Return [N, C, *sizes] resized.

    Args:
        op: Creates nodes.
        x: The input.
        output_size: The new sizes; None if they follow from the scales (rounded down).
        scales: New over old size per axis; they determine the source coordinates, unless corners
            are aligned. None, or None for an axis: the ratio of the sizes.
        mode: "nearest", "linear" or "cubic".
        align_corners: Whether the centers of the corner pixels are kept in place.
        antialias: Whether the filter is widened when the image shrinks.
        exact: Whether "nearest" starts from the center of a pixel instead of its corner.
    """
    axes = rank_of(x) - 2
    factors = [None] * axes if align_corners else _factors(x, output_size, scales, axes)
    sizes = output_size if output_size is not None else _sizes(x, scales)
    if sizes is not None and is_static(sizes) and is_static(dims_of(x)[2:]):
        if tuple(sizes) == dims_of(x)[2:] and not any(factors):
            return x
        # For other factors the nearest pixel depends on how a coordinate is rounded; torch's own
        # function chooses it.
        if mode == "nearest" and not _has_integer_factors(x, sizes, factors):
            return _gathered(op, x, sizes, factors, exact=exact)
        if antialias:
            return _antialiased(op, x, sizes, factors, mode, align_corners=align_corners)
        if mode != "nearest" and dtype_of(x) not in _SCALABLE:
            return _filtered(op, x, sizes, factors, mode, align_corners=align_corners)
    if antialias:
        # onnxruntime's antialiased Resize differs from torch's
        raise LoweringError("antialiased resizing requires static sizes", op.scope.where)
    coordinates = "align_corners" if align_corners else "half_pixel"
    options: dict[str, Any] = {"mode": mode}
    if mode == "nearest":
        options["nearest_mode"] = "round_prefer_ceil" if exact else "floor"
        coordinates = "half_pixel" if exact else "asymmetric"
    if mode == "cubic":
        options["cubic_coeff_a"] = -0.75
    options["coordinate_transformation_mode"] = coordinates
    data = x if dtype_of(x) in _SCALABLE else op.cast(x, torch.float32)
    if any(factors):
        # Resize takes either sizes or scales; coordinates that follow from scales need the latter.
        known = [f or 1.0 for f in factors]
        result = op.Resize(data, None, [1.0, 1.0, *known], **options)
    else:
        result = op.Resize(data, None, None, _size_vector(op, x, sizes, scales), **options)
    return op.cast(result, dtype_of(x))


# ---------------------------------------------------------------------- sizes
def _factors(
    x: Value, output_size: Sequence[Dim] | None, scales: Sequence[float | None] | None, axes: int
) -> list[float | None]:
    """Return the scales that differ from the ratio of the sizes."""
    if scales is None or not any(scales):
        return [None] * axes
    found: list[float | None] = []
    for i, scale in enumerate(scales):
        size = dims_of(x)[2 + i]
        target = output_size[i] if output_size is not None else None
        if scale and isinstance(size, int):
            target = int(size * scale) if target is None else target
            found.append(None if target == size * scale else scale)
        else:
            found.append(
                None if scale and target == as_dim(size * int(scale)) == size * scale else scale
            )
    if not any(found):
        return found
    return [
        f or (s or _ratio(x, output_size, i))
        for i, (f, s) in enumerate(zip(found, scales, strict=True))
    ]


def _ratio(x: Value, output_size: Sequence[Dim] | None, i: int) -> float:
    size = dims_of(x)[2 + i]
    if output_size is None or not isinstance(size, int) or not isinstance(output_size[i], int):
        return 1.0
    return int(output_size[i]) / size


def _sizes(x: Value, scales: Sequence[float | None] | None) -> list[Dim] | None:
    """Return the sizes that follow from the scales, if they are known at conversion."""
    found: list[Dim] = []
    for size, scale in zip(dims_of(x)[2:], scales or (), strict=True):
        assert scale is not None
        if isinstance(size, int):
            found.append(int(size * scale))
        elif scale == int(scale):
            found.append(as_dim(size * int(scale)))
        else:
            # A scale such as 1/3 has no exact float. Scales that are not fractions with such a
            # denominator are multiplied at run time.
            ratio = Fraction(scale).limit_denominator(1024)
            if float(ratio) != scale:
                return None
            found.append(as_dim(size * ratio.numerator // ratio.denominator))
    return found


def _size_vector(
    op: OpBuilder, x: Value, sizes: Sequence[Dim] | None, scales: Sequence[float | None] | None
) -> Value:
    """Return all sizes of the result as a 1-D value."""
    if sizes is not None:
        return op.shape([*dims_of(x)[:2], *sizes])
    old = op.cast(op.shape(dims_of(x)[2:]), torch.float64)
    new = op.Floor(op.Mul(old, [float(s or 1.0) for s in scales or ()]))
    return op.Concat(op.shape(dims_of(x)[:2]), op.cast(new, torch.int64), axis=0)


def _has_integer_factors(x: Value, sizes: Sequence[Dim], factors: Sequence[float | None]) -> bool:
    """Whether every axis grows by an integer factor, so that no coordinate is rounded."""
    if any(factors) or dtype_of(x) not in _SCALABLE:
        return False
    old = [int(d) for d in dims_of(x)[2:]]
    return all(o > 0 and int(s) % o == 0 for s, o in zip(sizes, old, strict=True))


# ---------------------------------------------------------------------- elementary ops
def _gathered(
    op: OpBuilder, x: Value, sizes: Sequence[Dim], factors: Sequence[float | None], *, exact: bool
) -> Value:
    """Return the nearest pixels, gathered axis by axis at the indices that torch computes."""
    mode = "nearest-exact" if exact else "nearest"
    for i, (size, factor) in enumerate(zip(sizes, factors, strict=True)):
        old = int(dims_of(x)[2 + i])
        line = torch.arange(old, dtype=torch.float64)[None, None]
        if factor:
            places = F.interpolate(line, scale_factor=factor, mode=mode)
        else:
            places = F.interpolate(line, size=int(size), mode=mode)
        x = op.Gather(x, op.const(places[0, 0].to(torch.int64)), axis=2 + i)
    return x


def _filtered(
    op: OpBuilder,
    x: Value,
    sizes: Sequence[Dim],
    factors: Sequence[float | None],
    mode: str,
    *,
    align_corners: bool,
) -> Value:
    """Return weighted sums of neighbors, axis by axis, in the dtype of x."""
    kernel = LINEAR if mode == "linear" else CUBIC
    for i, (size, factor) in enumerate(zip(sizes, factors, strict=True)):
        old = int(dims_of(x)[2 + i])
        where = sources(old, int(size), factor, align_corners=align_corners)
        x = resample(op, x, 2 + i, *taps(where, old, kernel))
    return x


def _antialiased(
    op: OpBuilder,
    x: Value,
    sizes: Sequence[Dim],
    factors: Sequence[float | None],
    mode: str,
    *,
    align_corners: bool,
) -> Value:
    """Return rows @ x @ columnsᵀ, with the weights of an antialiasing filter in both matrices."""
    rows, columns = (
        antialias_weights(int(old), int(new), factor, mode, align_corners=align_corners)
        for old, new, factor in zip(dims_of(x)[2:], sizes, factors, strict=True)
    )
    wide = op.cast(x, torch.float32) if dtype_of(x) != torch.float64 else x
    dtype = dtype_of(wide)
    shorter = op.MatMul(wide, op.const(columns.T.contiguous(), dtype))
    result = op.MatMul(op.const(rows, dtype), shorter)
    if dtype_of(x) == torch.uint8:
        result = op.Clip(op.Round(result), 0.0, 255.0)
    return op.cast(result, dtype_of(x))
