"""Grid sampling, and rearrangement of pixels between channels and space."""

from __future__ import annotations

import torch

from coreai_onnx.lower.aten.shape.indices import floor_div
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value, as_dim, dims_of, dtype_of, rank_of
from coreai_onnx.lower.walk.registry import lowers

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
