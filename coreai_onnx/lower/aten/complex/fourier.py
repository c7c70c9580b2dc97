"""Fourier transforms, as ONNX ``DFT`` along one axis after another."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from coreai_onnx.export.compat.torch_names import FloorDiv
from coreai_onnx.lower.aten.complex.parts import as_pairs, join, split
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.promotion import as_value
from coreai_onnx.lower.nodes.tensors import reversed_along
from coreai_onnx.lower.nodes.values import (
    Dim,
    Value,
    as_dim,
    dims_of,
    dtype_of,
    numel,
    set_dims,
    wrap,
)
from coreai_onnx.lower.walk.registry import lowers

_BY_ROOT, _BY_SIZE = 1, 2


@lowers("aten._fft_c2c.default", complex=True)
def fft_c2c(
    op: OpBuilder, self: Value, dim: Sequence[int], normalization: int, *, forward: bool
) -> Value:
    """X[k] = scale · Σ x[n] e^(∓2πi kn / N) along axes."""
    rank = len(dims_of(self))
    sizes = [dims_of(self)[d] for d in dim]
    x = as_pairs(op, self)
    for axis in dim:
        x = dft(op, x, wrap(axis, rank), forward=forward)
    return normalized(op, x, sizes, normalization, forward=forward)


@lowers("aten._fft_r2c.default", complex=True)
def fft_r2c(
    op: OpBuilder, self: Value, dim: Sequence[int], normalization: int, *, onesided: bool
) -> Value:
    """The transform of a real tensor; ``onesided`` keeps the first N // 2 + 1 of the last axis."""
    rank = len(dims_of(self))
    axes = [wrap(d, rank) for d in dim]
    sizes = [dims_of(self)[a] for a in axes]
    x = dft(op, op.unsqueeze(self, [rank]), axes[-1], forward=True)
    if onesided:
        # First, so that the other axes transform half as many rows.
        x = part(op, x, axes[-1], 0, half(sizes[-1]))
    for axis in axes[:-1]:
        x = dft(op, x, axis, forward=True)
    return normalized(op, x, sizes, normalization, forward=True)


@lowers("aten._fft_c2r.default", complex=True)
def fft_c2r(
    op: OpBuilder, self: Value, dim: Sequence[int], normalization: int, last_dim_size: Dim
) -> Value:
    """The inverse transform to a real tensor, from the first half of the last axis."""
    rank = len(dims_of(self))
    axes = [wrap(d, rank) for d in dim]
    sizes = [*(dims_of(self)[a] for a in axes[:-1]), last_dim_size]
    x = as_pairs(op, self)
    for axis in axes[:-1]:
        x = dft(op, x, axis, forward=False)
    whole = mirrored(op, x, axes[-1], last_dim_size)
    re, _ = split(op, dft(op, whole, axes[-1], forward=False))
    return normalized(op, re, sizes, normalization, forward=False)


def mirrored(op: OpBuilder, x: Value, axis: int, size: Dim) -> Value:
    """Return all N frequencies of a real signal: those above N / 2 are conjugates."""
    first = part(op, x, axis, 0, half(size))
    above = reversed_along(op, part(op, x, axis, 1, as_dim(size - half(size) + 1)), [axis])
    re, im = split(op, above)
    whole = op.Concat(first, join(op, re, op.Neg(im)), axis=axis)
    dims = dims_of(x)
    return set_dims(whole, (*dims[:axis], size, *dims[axis + 1 :]))


def half(size: Dim) -> Dim:
    """Return the number of independent frequencies of a real signal: N // 2 + 1."""
    if isinstance(size, int):
        return size // 2 + 1

    return as_dim(FloorDiv(size, sympy.Integer(2)) + 1)


def part(op: OpBuilder, x: Value, axis: int, start: int, end: Dim) -> Value:
    """Return x[start:end] along an axis."""
    dims = dims_of(x)
    return set_dims(
        op.slice(x, axis, start, end), (*dims[:axis], as_dim(end - start), *dims[axis + 1 :])
    )


def dft(op: OpBuilder, x: Value, axis: int, *, forward: bool) -> Value:
    """Return the transform along an axis of pairs (or of reals with a last axis of 1).

    The inverse is divided by the number of points. For sizes that are not powers of two,
    onnxruntime uses the chirp transform, which is inaccurate in float32; these are transformed in
    float64.
    """
    dims = dims_of(x)
    size, dtype = dims[axis], dtype_of(x)
    if not (isinstance(size, int) and size & (size - 1) == 0):
        x = op.cast(x, torch.float64)
    alone = len(dims) == 2  # DFT requires a batch axis
    if alone:
        x, axis = op.unsqueeze(x, [0]), axis + 1
    # Opset 20 made the axis an input.
    if op.opset >= 20:
        y = op.DFT(x, None, axis, inverse=int(not forward))
    else:
        y = op.DFT(x, axis=axis, inverse=int(not forward))
    y = op.cast(y, dtype)
    return set_dims(op.squeeze(y, [0]) if alone else y, (*dims[:-1], 2))


def normalized(
    op: OpBuilder, x: Value, sizes: Sequence[Dim], normalization: int, *, forward: bool
) -> Value:
    """Return the transform scaled by torch's normalization: 1 (0), 1 / √N (1) or 1 / N (2)."""
    # The inverse DFT of ONNX is divided by the number of points already.
    power = {0: 0.0, _BY_ROOT: -0.5, _BY_SIZE: -1.0}[normalization] + (0 if forward else 1)
    count = numel(sizes)
    if power == 0:
        return x
    if isinstance(count, int):
        return op.Mul(x, float(count) ** power if count else 1.0)
    points = as_value(op, count, dtype_of(x))
    factor = op.Sqrt(points) if abs(power) == 0.5 else points
    return op.Mul(x, factor) if power > 0 else op.Div(x, factor)
