"""Images: torch's upsampling ops, one per filter and number of axes, grids, and pixel shuffles."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F

from coreai_onnx.lower.aten.nn.antialiasing import antialiased
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.tensors import floor_div
from coreai_onnx.lower.nodes.values import (
    Dim,
    Value,
    as_dim,
    dims_of,
    dtype_of,
    is_static,
    rank_of,
    set_dims,
)
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


_UPSAMPLES: dict[str, dict[str, Any]] = {
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
}
for _name, _options in _UPSAMPLES.items():
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
        if mode != "nearest" and not antialias and dtype_of(x) not in _SCALABLE:
            return _filtered(op, x, sizes, factors, mode, align_corners=align_corners)
    if antialias:
        counts = sizes if sizes is not None else _size_vector(op, x, sizes, scales)
        return antialiased(op, x, counts, factors, mode, align_corners=align_corners)
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
        scaled = [f or 1.0 for f in factors]
        result = op.Resize(data, None, [1.0, 1.0, *scaled], **options)
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
    factors: list[float | None] = []
    for i, scale in enumerate(scales):
        size = dims_of(x)[2 + i]
        target = output_size[i] if output_size is not None else None
        if scale and isinstance(size, int):
            target = int(size * scale) if target is None else target
            factors.append(None if target == size * scale else scale)
        else:
            factors.append(
                None if scale and target == as_dim(size * int(scale)) == size * scale else scale
            )
    if not any(factors):
        return factors
    return [
        f or (s or _ratio(x, output_size, i))
        for i, (f, s) in enumerate(zip(factors, scales, strict=True))
    ]


def _ratio(x: Value, output_size: Sequence[Dim] | None, i: int) -> float:
    size = dims_of(x)[2 + i]
    if output_size is None or not isinstance(size, int) or not isinstance(output_size[i], int):
        return 1.0
    return int(output_size[i]) / size


def _sizes(x: Value, scales: Sequence[float | None] | None) -> list[Dim] | None:
    """Return the sizes that follow from the scales, if they are known at conversion."""
    sizes: list[Dim] = []
    for size, scale in zip(dims_of(x)[2:], scales or (), strict=True):
        assert scale is not None
        if isinstance(size, int):
            sizes.append(int(size * scale))
        elif scale == int(scale):
            sizes.append(as_dim(size * int(scale)))
        else:
            # A scale such as 1/3 has no exact float. Scales that are not fractions with such a
            # denominator are multiplied at run time.
            ratio = Fraction(scale).limit_denominator(1024)
            if float(ratio) != scale:
                return None
            sizes.append(as_dim(size * ratio.numerator // ratio.denominator))
    return sizes


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
    for i, (size, factor) in enumerate(zip(sizes, factors, strict=True)):
        old = int(dims_of(x)[2 + i])
        where = sources(old, int(size), factor, align_corners=align_corners)
        x = resample(op, x, 2 + i, *taps(where, old, mode))
    return x


# ---------------------------------------------------------------------- filters along one axis
_CUBIC_COEFFICIENT = -0.75


def sources(old: int, new: int, factor: float | None, *, align_corners: bool) -> torch.Tensor:
    """Return the coordinates in the old axis of the elements of the new one, [new] in float64.

    Args:
        old: Size of the axis.
        new: Its size in the result.
        factor: New over old, if it is not the ratio of the sizes.
        align_corners: Whether the first and last elements are kept in place.
    """
    index = torch.arange(new, dtype=torch.float64)
    if align_corners:
        return index * ((old - 1) / (new - 1) if new > 1 else 0.0)
    return (index + 0.5) * (1 / factor if factor else old / new) - 0.5


def taps(where: torch.Tensor, old: int, mode: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices [new, k] and weights [new, k] of a filter: k is 2 (linear) or 4 (cubic).

    The cubic weights are those of Keys, "Cubic convolution interpolation for digital image
    processing" (1981), with a = -0.75.
    """
    if mode == "linear":
        # As in torch, which clamps the coordinate of a linear filter, but only the indices of a
        # cubic one.
        where = where.clamp(min=0)
    below = where.floor()
    t = where - below
    if mode == "linear":
        weights = torch.stack([1 - t, t], dim=1)
        offsets = torch.arange(2)
    else:
        weights = torch.stack([_far(t + 1), _near(t), _near(1 - t), _far(2 - t)], dim=1)
        offsets = torch.arange(-1, 3)
    places = (below.to(torch.int64)[:, None] + offsets).clamp(0, old - 1)
    return places, weights


def resample(
    op: OpBuilder, x: Value, axis: int, places: torch.Tensor, weights: torch.Tensor
) -> Value:
    """Return Σ over k of x[places[:, k]] * weights[:, k] along an axis."""
    total: Value | None = None
    after = [1] * (rank_of(x) - axis - 1)
    for place, weight in zip(places.unbind(1), weights.unbind(1), strict=True):
        factor = op.const(weight.reshape(-1, *after), dtype_of(x))
        term = op.Mul(op.Gather(x, op.const(place.contiguous()), axis=axis), factor)
        total = term if total is None else op.Add(total, term)
    assert total is not None
    dims = dims_of(x)
    return set_dims(total, (*dims[:axis], len(places), *dims[axis + 1 :]))


def _near(t: torch.Tensor) -> torch.Tensor:
    a = _CUBIC_COEFFICIENT
    return ((a + 2) * t - (a + 3)) * t * t + 1


def _far(t: torch.Tensor) -> torch.Tensor:
    a = _CUBIC_COEFFICIENT
    return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a


# ---------------------------------------------------------------------- grids and pixels
_PADDINGS = ("zeros", "border", "reflection")
_MODES = ("linear", "nearest", "cubic")
# Opset 20 renamed the modes when it added volumes.
_MODES_BEFORE_20 = ("bilinear", "nearest", "bicubic")
_DEPTH_DTYPES = (torch.float32, torch.float64, torch.int8, torch.uint8)


@lowers("aten.grid_sampler.default", "aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default")
def grid_sampler(
    op: OpBuilder,
    input: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    *,
    align_corners: bool,
) -> Value:
    """Input sampled at the points of the grid, with coordinates from -1 to 1 along every axis."""
    modes = _MODES if op.opset >= 20 else _MODES_BEFORE_20
    return op.GridSample(
        input,
        grid,
        mode=modes[interpolation_mode],
        padding_mode=_PADDINGS[padding_mode],
        align_corners=int(align_corners),
    )


@lowers("aten.pixel_shuffle.default", whole=True)
def pixel_shuffle(op: OpBuilder, self: Value, upscale_factor: int) -> Value:
    """[…, C r², H, W] → […, C, H r, W r]."""
    r, rank = upscale_factor, rank_of(self)
    *lead, channels, height, width = dims_of(self)
    if rank == 4 and dtype_of(self) in _DEPTH_DTYPES and 0 not in dims_of(self):
        return op.DepthToSpace(self, blocksize=r, mode="CRD")
    fewer = floor_div(channels, r * r)
    blocks = op.reshape(self, [*lead, fewer, r, r, height, width])
    n = len(lead)
    moved = op.transpose(blocks, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return op.reshape(moved, [*lead, fewer, as_dim(height * r), as_dim(width * r)])
