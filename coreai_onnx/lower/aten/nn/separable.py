"""Filters along one axis: source indices and weights of every result."""

from __future__ import annotations

import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value, dims_of, dtype_of, rank_of, set_dims

LINEAR, CUBIC = 2, 4
"""The number of elements that a filter reads."""
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


def taps(where: torch.Tensor, old: int, kernel: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices [new, kernel] and weights [new, kernel] of a filter.

    The cubic weights are those of Keys, "Cubic convolution interpolation for digital image
    processing" (1981), with a = -0.75.
    """
    if kernel == LINEAR:
        # As in torch, which clamps the coordinate of a linear filter, but only the indices of a
        # cubic one.
        where = where.clamp(min=0)
    below = where.floor()
    t = where - below
    if kernel == LINEAR:
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
