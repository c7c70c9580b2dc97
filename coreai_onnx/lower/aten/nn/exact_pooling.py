"""Pooling element by element of the window, for dtypes that onnxruntime's ops do not support."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import sympy
import torch

from coreai_onnx.lower.aten.nn.exact_convolution import pad_sizes, window
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Dim, Value, as_dim, dims_of, dtype_of, numel


def exact_maximum(
    op: OpBuilder,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *,
    ceil_mode: bool,
    indices: bool,
) -> tuple[Value, Value | None]:
    """Return the maximum of every window of [N, C, *sizes] and, if requested, its position."""
    windows = _windows(dims_of(x)[2:], kernel, stride, padding, dilation, ceil_mode=ceil_mode)
    pads = _pads(dims_of(x)[2:], windows, kernel, stride, padding, dilation)
    dtype = dtype_of(x)
    # The padding must not win.
    lowest = -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min
    padded, _ = pad_sizes(op, x, pads, lowest)
    places = list(itertools.product(*(range(k) for k in kernel)))
    parts = [window(op, padded, p, windows, stride, dilation) for p in places]
    if not indices:
        return parts[0] if len(parts) == 1 else op.Max(*parts), None
    sizes = dims_of(x)[2:]
    count = op.Range(0, op.dim(numel(sizes)), 1)
    positions, _ = pad_sizes(op, op.reshape(count, [1, 1, *sizes]), pads, 0)
    largest, winners = parts[0], None
    for place, part in zip(places, parts, strict=True):
        here = window(op, positions, place, windows, stride, dilation)
        if winners is None:
            winners = op.Expand(here, op.Shape(part))
            continue
        # Greater: as in torch, the first of equal elements wins.
        more = op.Greater(part, largest)
        largest, winners = (
            op.Where(more, part, largest),
            op.Where(more, here, winners),
        )
    return largest, winners


def exact_average(
    op: OpBuilder,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    *,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Value:
    """Return the average of every window of [N, C, *sizes]; integers are divided toward zero."""
    sizes, ones = dims_of(x)[2:], [1] * len(kernel)
    windows = _windows(sizes, kernel, stride, padding, ones, ceil_mode=ceil_mode)
    pads = _pads(sizes, windows, kernel, stride, padding, ones)
    total = _window_sum(op, pad_sizes(op, x, pads, 0)[0], kernel, windows, stride)
    if divisor is not None:
        return op.Div(total, divisor)
    border = padding if count_include_pad else [0] * len(kernel)
    counted = [as_dim(s + 2 * b) for s, b in zip(sizes, border, strict=True)]
    mask = op.expand(op.const(1, dtype_of(x)), [1, 1, *counted])
    # The border counts if count_include_pad is set; what ceil_mode adds behind it never does.
    rest = [p - b for p, b in zip([*pads], [*border, *border], strict=True)]
    counts = _window_sum(op, pad_sizes(op, mask, rest, 0)[0], kernel, windows, stride)
    return op.Div(total, counts)


def _window_sum(
    op: OpBuilder, x: Value, kernel: Sequence[int], windows: Sequence[Dim], stride: Sequence[int]
) -> Value:
    ones = [1] * len(kernel)
    total: Value | None = None
    for place in itertools.product(*(range(k) for k in kernel)):
        part = window(op, x, place, windows, stride, ones)
        total = part if total is None else op.Add(total, part)
    assert total is not None
    return total


def _windows(
    sizes: Sequence[Dim],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *,
    ceil_mode: bool,
) -> list[Dim]:
    """Return the number of windows per axis; each starts in the input or the padding before it."""
    counts: list[Dim] = []
    for s, k, t, p, d in zip(sizes, kernel, stride, padding, dilation, strict=True):
        room = s + 2 * p - d * (k - 1) - 1
        if not ceil_mode:
            counts.append(as_dim(room // t + 1))
        else:
            fitting, starting = (room + t - 1) // t, (s + p - 1) // t
            counts.append(as_dim(sympy.Min(fitting, starting) + 1))
    return counts


def _pads(
    sizes: Sequence[Dim],
    windows: Sequence[Dim],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[Dim]:
    """Return the padding at every start, then at every end, so that the last window fits."""
    ends = [
        as_dim((w - 1) * t + d * (k - 1) + 1 - s - p)
        for s, w, k, t, p, d in zip(sizes, windows, kernel, stride, padding, dilation, strict=True)
    ]
    return [*padding, *ends]
