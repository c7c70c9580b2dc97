"""The functions of torch.fft: sizes, axes and norms around ONNX's ``DFT``, one axis at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

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
    is_complex,
    is_float,
    numel,
    rank_of,
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


_FORWARD = {None: 0, "backward": 0, "ortho": 1, "forward": 2}
_INVERSE = {None: 2, "backward": 2, "ortho": 1, "forward": 0}
"""Torch's numbers of the norms 1, 1 / √N, 1 / N."""

Axes = list[tuple[int, Dim | None]]
"""Axes to transform and their requested sizes, None for the size of the input."""
Transform = Callable[[OpBuilder, Value, Axes, str | None], Value]


def _c2c(op: OpBuilder, x: Value, axes: Axes, norm: str | None, *, forward: bool) -> Value:
    """X[k] = scale · Σ x[n] e^(∓2πi kn / N) along axes."""
    p = _with_parts(op, x)
    for axis, size in axes:
        p = dft(op, _sized(op, p, axis, size), axis, forward=forward)
    return normalized(
        op, _pairs(op, p), _sizes(p, axes), _scale(norm, forward=forward), forward=forward
    )


def _to_half(op: OpBuilder, x: Value, axes: Axes, norm: str | None, *, forward: bool) -> Value:
    """The transform of reals: the first N // 2 + 1 of the last axis, all of the other axes."""
    p = _with_parts(op, x)
    for axis, size in axes:
        p = _sized(op, p, axis, size)
    sizes = _sizes(p, axes)
    last = axes[-1][0]
    p = part(op, dft(op, p, last, forward=True), last, 0, half(sizes[-1]))
    # But for its factor, an inverse transform of reals is the conjugate of the forward transform.
    p = p if forward else _conjugate(op, p)
    for axis, _ in axes[:-1]:
        p = dft(op, p, axis, forward=forward)
    if not forward:
        p = normalized(op, p, sizes[:-1], 0, forward=False)
    return normalized(op, p, sizes, _scale(norm, forward=forward), forward=True)


def _from_half(op: OpBuilder, x: Value, axes: Axes, norm: str | None, *, forward: bool) -> Value:
    """The transform to 2 (N - 1) reals, or as many as requested, from N frequencies."""
    p, (last, size) = _pairs(op, _with_parts(op, x)), axes[-1]
    # Even and odd sizes have equally many frequencies; as in torch, the even one is the default.
    count = as_dim(2 * (dims_of(p)[last] - 1)) if size is None else size
    for axis, other in axes[:-1]:
        p = dft(op, _sized(op, p, axis, other), axis, forward=forward)
    sizes = [*_sizes(p, axes[:-1]), count]
    p = _sized(op, p, last, half(count))
    # But for its factor, a forward transform is the inverse transform of the conjugate.
    p = _conjugate(op, p) if forward else p
    re, _ = split(op, dft(op, mirrored(op, p, last, count), last, forward=False))
    if forward:
        re = normalized(op, re, [count], 0, forward=False)  # undoes the inverse's 1 / N
    return normalized(op, re, sizes, _scale(norm, forward=forward), forward=forward)


def _scale(norm: str | None, *, forward: bool) -> int:
    """Return torch's number of a norm."""
    return (_FORWARD if forward else _INVERSE)[norm]


# ---------------------------------------------------------------------- parts and sizes
def _with_parts(op: OpBuilder, x: Value) -> Value:
    """Return floats with a trailing axis of parts: one for reals, two for complex numbers."""
    if is_complex(x):
        return as_pairs(op, x)
    real = x if is_float(x) else op.cast(x, torch.get_default_dtype())
    dims = dims_of(x)
    return set_dims(op.unsqueeze(real, [len(dims)]), (*dims, 1))


def _pairs(op: OpBuilder, p: Value) -> Value:
    """Return two parts: a single part is paired with zeros."""
    dims = dims_of(p)
    if dims[-1] == 2:
        return p
    re = op.squeeze(p, [len(dims) - 1])
    return set_dims(join(op, re, op.Mul(re, 0)), (*dims[:-1], 2))


def _conjugate(op: OpBuilder, p: Value) -> Value:
    sign = op.const(torch.tensor([1.0, -1.0], dtype=dtype_of(p)))
    return set_dims(op.Mul(p, sign), dims_of(p))


def _sized(op: OpBuilder, p: Value, axis: int, size: Dim | None) -> Value:
    """Return ``p`` with an axis truncated or zero-padded to a size."""
    dims = dims_of(p)
    now = dims[axis]
    if size is None or size in (-1, now):
        return p
    after = (*dims[:axis], size, *dims[axis + 1 :])
    if isinstance(size, int) and isinstance(now, int) and size < now:
        return set_dims(op.slice(p, axis, 0, size), after)
    # For symbolic sizes it is unknown which of Slice and Pad has an effect.
    more = op.Max(op.Sub(op.dim(size), op.dim(now)), 0)
    rank = len(dims)
    pads: list[Dim | Value] = [more if a == rank + axis else 0 for a in range(2 * rank)]
    cut = p if isinstance(size, int) and isinstance(now, int) else op.slice(p, axis, 0, size)
    return set_dims(op.Pad(cut, op.shape(pads)), after)


def _sizes(p: Value, axes: Axes) -> list[Dim]:
    return [dims_of(p)[axis] for axis, _ in axes]


def _axes(x: Value, sizes: Sequence[Dim] | None, dims: Sequence[int] | None) -> Axes:
    """Return the transformed axes: without ``dims`` the last ones, as many as there are sizes."""
    rank = rank_of(x)
    if dims is None:
        dims = range(rank - len(sizes), rank) if sizes is not None else range(rank)
    lengths = [None] * len(dims) if sizes is None else list(sizes)
    return [(wrap(d, rank), n) for d, n in zip(dims, lengths, strict=True)]


# ---------------------------------------------------------------------- the functions
def of_one_axis(
    op: OpBuilder,
    self: Value,
    n: Dim | None = None,
    dim: int = -1,
    norm: str | None = None,
    *,
    transform: Transform,
) -> Value:
    """The transform along one axis."""
    return transform(op, self, [(wrap(dim, rank_of(self)), n)], norm)


def of_axes(
    op: OpBuilder,
    self: Value,
    s: Sequence[Dim] | None = None,
    dim: Sequence[int] | None = None,
    norm: str | None = None,
    *,
    transform: Transform,
) -> Value:
    """The transform along several axes."""
    return transform(op, self, _axes(self, s, dim), norm)


TRANSFORMS: dict[str, Transform] = {
    "fft": partial(_c2c, forward=True),
    "ifft": partial(_c2c, forward=False),
    "rfft": partial(_to_half, forward=True),
    "ihfft": partial(_to_half, forward=False),
    "irfft": partial(_from_half, forward=False),
    "hfft": partial(_from_half, forward=True),
}
"""Transforms by function name, for one axis, two axes (``fft2``) and any number (``fftn``)."""

for _name, _transform in TRANSFORMS.items():
    for _ending, _function in (("", of_one_axis), ("2", of_axes), ("n", of_axes)):
        for _is_complex in (False, True):
            _overload = f"aten.fft_{_name}{_ending}.default"
            lowers(_overload, complex=_is_complex, transform=_transform)(_function)
