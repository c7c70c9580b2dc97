"""Antialiased resizing: the product with a matrix of filter weights along each of two axes.

onnxruntime's Resize with ``antialias=1`` differs from torch's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.tensors import positions
from coreai_onnx.lower.nodes.values import Dim, Value, dims_of, dtype_of

_CUBIC_COEFFICIENT = -0.5
"""Torch's, for antialiased resizing; it is -0.75 otherwise."""


def antialiased(
    op: OpBuilder,
    x: Value,
    sizes: Sequence[Dim] | Value,
    factors: Sequence[float | None],
    mode: str,
    *,
    align_corners: bool,
) -> Value:
    """Return rows @ x @ columnsᵀ, with the weights of an antialiasing filter in both matrices.

    Args:
        op: Creates nodes.
        x: The images [N, C, H, W].
        sizes: The new height and width, or the shape of the result as a value.
        factors: New over old size per axis where it is not the ratio of the sizes.
        mode: "linear" or "cubic".
        align_corners: Whether the centers of the corner pixels are kept in place.
    """
    wide = op.cast(x, torch.float32) if dtype_of(x) != torch.float64 else x
    dtype = dtype_of(wide)
    matrices = []
    for axis, factor in zip((2, 3), factors, strict=True):
        old = dims_of(x)[axis]
        new = op.Gather(sizes, axis, axis=0) if isinstance(sizes, Value) else sizes[axis - 2]
        if isinstance(old, int) and isinstance(new, int):
            matrix = antialias_weights(old, new, factor, mode, align_corners=align_corners)
            matrices.append(op.const(matrix.T.contiguous() if axis == 3 else matrix, dtype))
        else:
            shrinking = _step(op, old, new, factor, dtype, align_corners=align_corners)
            weights = _computed_weights(op, old, new, shrinking, mode)
            matrices.append(op.transpose(weights, [1, 0]) if axis == 3 else weights)
    rows, columns = matrices
    result = op.MatMul(rows, op.MatMul(wide, columns))
    if dtype_of(x) == torch.uint8:
        result = op.Clip(op.Round(result), 0.0, 255.0)
    return op.cast(result, dtype_of(x))


def antialias_weights(
    old: int, new: int, factor: float | None, mode: str, *, align_corners: bool
) -> torch.Tensor:
    """Return the weights [new, old] of a filter that is widened when the axis shrinks, in float64.

    They are computed by applying torch's own filter to the rows of an identity matrix.
    """
    rows = torch.eye(old, dtype=torch.float64)[None, None]
    resized = getattr(torch.ops.aten, f"_upsample_bi{mode}2d_aa").default
    result: torch.Tensor = resized(rows, [new, old], align_corners, factor, None)[0, 0]
    return result


def _step(
    op: OpBuilder,
    old: Dim,
    new: Dim | Value,
    factor: float | None,
    dtype: torch.dtype,
    *,
    align_corners: bool,
) -> Value:
    """Return the distance of two neighbors of the result, in elements of the old axis."""
    if factor and not align_corners:
        return op.const(1 / factor, dtype)
    before, after = op.cast(op.dim(old), dtype), op.cast(_scalar(op, new), dtype)
    if not align_corners:
        return op.Div(before, after)
    steps = op.Sub(after, 1.0)
    # A single element starts at zero.
    return op.Where(op.Greater(steps, 0.0), op.Div(op.Sub(before, 1.0), op.Max(steps, 1.0)), 0.0)


def _computed_weights(op: OpBuilder, old: Dim, new: Dim | Value, step: Value, mode: str) -> Value:
    """Return the weights [new, old] as nodes.

    Source of the formula: ``_compute_indices_weights_aa`` in torch's UpSampleKernel.cpp. The
    bounds of its loops are not needed: an element outside the filter has the weight zero.
    """
    dtype = dtype_of(step)
    index = op.Range(op.const(0), _scalar(op, new), op.const(1))
    centers = op.Mul(op.Add(op.cast(index, dtype), 0.5), step)
    pixels = op.Add(op.cast(positions(op, old), dtype), 0.5)
    distance = op.Abs(op.Sub(pixels, op.unsqueeze(centers, [1])))
    distance = op.Div(distance, op.Max(step, 1.0))
    weights = op.Max(op.Sub(1.0, distance), 0.0) if mode == "linear" else _cubic(op, distance)
    return op.Div(weights, op.ReduceSum(weights, [1], keepdims=1))


def _cubic(op: OpBuilder, t: Value) -> Value:
    """Return Keys' cubic filter at distances that are not negative; see ``taps``."""
    a = _CUBIC_COEFFICIENT
    near = op.Add(op.Mul(op.Mul(op.Sub(op.Mul(t, a + 2), a + 3), t), t), 1.0)
    far = op.Sub(op.Mul(op.Add(op.Mul(op.Sub(op.Mul(t, a), 5 * a), t), 8 * a), t), 4 * a)
    outside = op.Where(op.Less(t, 2.0), far, 0.0)
    return op.Where(op.Less(t, 1.0), near, outside)


def _scalar(op: OpBuilder, size: Dim | Value) -> Value:
    return size if isinstance(size, Value) else op.dim(size)
