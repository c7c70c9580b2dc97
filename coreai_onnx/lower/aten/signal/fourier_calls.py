"""The functions of torch.fft: sizes, axes and norms around the transforms of fourier.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from coreai_onnx.lower.aten.pointwise.complex_parts import as_pairs, join, split
from coreai_onnx.lower.aten.signal.fourier import dft, half, mirrored, normalized, part
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import (
    Dim,
    Value,
    as_dim,
    dims_of,
    dtype_of,
    is_complex,
    is_float,
    rank_of,
    set_dims,
    wrap,
)
from coreai_onnx.lower.walk.registry import Lowering, lowers

_FORWARD = {None: 0, "backward": 0, "ortho": 1, "forward": 2}
_INVERSE = {None: 2, "backward": 2, "ortho": 1, "forward": 0}
"""Torch's numbers of the norms 1, 1 / √N, 1 / N."""

Axes = list[tuple[int, Dim | None]]
"""Axes to transform and their requested sizes, None for the size of the input."""
Transform = Callable[[OpBuilder, Value, Axes, str | None], Value]


def _c2c(*, forward: bool) -> Transform:
    def transform(op: OpBuilder, x: Value, axes: Axes, norm: str | None) -> Value:
        """X[k] = scale · Σ x[n] e^(∓2πi kn / N) along axes."""
        p = _with_parts(op, x)
        for axis, size in axes:
            p = dft(op, _sized(op, p, axis, size), axis, forward=forward)
        scale = (_FORWARD if forward else _INVERSE)[norm]
        return normalized(op, _pairs(op, p), _sizes(p, axes), scale, forward=forward)

    return transform


def _rfft(op: OpBuilder, x: Value, axes: Axes, norm: str | None) -> Value:
    """The transform of reals: the first N // 2 + 1 of the last axis, all of the other axes."""
    p = _with_parts(op, x)
    for axis, size in axes:
        p = _sized(op, p, axis, size)
    sizes = _sizes(p, axes)
    last = axes[-1][0]
    p = part(op, dft(op, p, last, forward=True), last, 0, half(sizes[-1]))
    for axis, _ in axes[:-1]:
        p = dft(op, p, axis, forward=True)
    return normalized(op, p, sizes, _FORWARD[norm], forward=True)


def _irfft(op: OpBuilder, x: Value, axes: Axes, norm: str | None) -> Value:
    """Its inverse: 2 (N - 1) reals from N frequencies, or as many as requested."""
    p, (last, size) = _pairs(op, _with_parts(op, x)), axes[-1]
    # Even and odd sizes have equally many frequencies; as in torch, the even one is the default.
    count = as_dim(2 * (dims_of(p)[last] - 1)) if size is None else size
    for axis, other in axes[:-1]:
        p = dft(op, _sized(op, p, axis, other), axis, forward=False)
    sizes = [*_sizes(p, axes[:-1]), count]
    whole = mirrored(op, _sized(op, p, last, half(count)), last, count)
    re, _ = split(op, dft(op, whole, last, forward=False))
    return normalized(op, re, sizes, _INVERSE[norm], forward=False)


def _hfft(op: OpBuilder, x: Value, axes: Axes, norm: str | None) -> Value:
    """The real transform of a Hermitian signal that is given by its first half."""
    p, (last, size) = _pairs(op, _with_parts(op, x)), axes[-1]
    count = as_dim(2 * (dims_of(p)[last] - 1)) if size is None else size
    for axis, other in axes[:-1]:
        p = dft(op, _sized(op, p, axis, other), axis, forward=True)
    sizes = [*_sizes(p, axes[:-1]), count]
    # But for its factor, a forward transform is the inverse transform of the conjugate.
    whole = mirrored(op, _conjugate(op, _sized(op, p, last, half(count))), last, count)
    re, _ = split(op, dft(op, whole, last, forward=False))
    re = normalized(op, re, [count], 0, forward=False)  # undoes the inverse's 1 / N
    return normalized(op, re, sizes, _FORWARD[norm], forward=True)


def _ihfft(op: OpBuilder, x: Value, axes: Axes, norm: str | None) -> Value:
    """Its inverse: the first N // 2 + 1 elements of the conjugate transform of reals."""
    p = _with_parts(op, x)
    for axis, size in axes:
        p = _sized(op, p, axis, size)
    sizes = _sizes(p, axes)
    last = axes[-1][0]
    p = _conjugate(op, part(op, dft(op, p, last, forward=True), last, 0, half(sizes[-1])))
    for axis, _ in axes[:-1]:
        p = dft(op, p, axis, forward=False)
    p = normalized(op, p, sizes[:-1], 0, forward=False)
    return normalized(op, p, sizes, _INVERSE[norm], forward=True)


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
def _of_one_axis(transform: Transform) -> Lowering:
    def lowering(
        op: OpBuilder, self: Value, n: Dim | None = None, dim: int = -1, norm: str | None = None
    ) -> Value:
        return transform(op, self, [(wrap(dim, rank_of(self)), n)], norm)

    return lowering


def _of_axes(transform: Transform) -> Lowering:
    def lowering(
        op: OpBuilder,
        self: Value,
        s: Sequence[Dim] | None = None,
        dim: Sequence[int] | None = None,
        norm: str | None = None,
    ) -> Value:
        return transform(op, self, _axes(self, s, dim), norm)

    return lowering


TRANSFORMS: dict[str, Transform] = {
    "fft": _c2c(forward=True),
    "ifft": _c2c(forward=False),
    "rfft": _rfft,
    "irfft": _irfft,
    "hfft": _hfft,
    "ihfft": _ihfft,
}
"""Transforms by function name, for one axis, two axes (``fft2``) and any number (``fftn``)."""

for _name, _transform in TRANSFORMS.items():
    for _ending, _kind in (("", _of_one_axis), ("2", _of_axes), ("n", _of_axes)):
        _overload = f"aten.fft_{_name}{_ending}.default"
        lowers(_overload)(_kind(_transform))
        lowers(_overload, complex=True)(_kind(_transform))
