"""Convolutions as matrix products, for dtypes and shapes that onnxruntime's Conv does not support.

These are float64 and integers, which keep their precision this way, and empty batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from coreai_onnx.errors import LoweringError
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import (
    Dim,
    Value,
    as_dim,
    dims_of,
    dtype_of,
    is_static,
    numel,
    rank_of,
)


def exact_convolution(
    op: OpBuilder,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    pads: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Value:
    """Return Σ over window positions p of weight[…, p] @ input[p::stride], plus bias.

    Args:
        op: Creates nodes.
        x: [N, C, *sizes].
        weight: [O, C / groups, *kernel], of static sizes.
        bias: [O] or None.
        stride: Step of the window per axis.
        pads: Padding at the start of every axis, then at the end of every axis.
        dilation: Distance of the window's elements per axis.
        groups: Number of independent groups of channels.
    """
    padded, sizes = pad_sizes(op, x, pads, 0)
    outputs, inputs, *kernel = _known(op, weight)
    windows = [
        as_dim((s - d * (k - 1) - 1) // t + 1)
        for s, k, d, t in zip(sizes, kernel, dilation, stride, strict=True)
    ]
    batch = dims_of(x)[0]
    if batch == 0:
        return op.expand(op.const(0, dtype_of(x)), [batch, outputs, *windows])
    shape = [batch, groups, inputs, numel(windows)]
    matrices = op.reshape(weight, [groups, outputs // groups, inputs, *kernel])
    total: Value | None = None
    for place in itertools.product(*(range(k) for k in kernel)):
        part = window(op, padded, place, windows, stride, dilation)
        matrix = matrices
        # Each Gather removes the last axis that is left.
        for offset in reversed(place):
            matrix = op.Gather(matrix, offset, axis=rank_of(matrix) - 1)
        term = op.MatMul(matrix, op.reshape(part, shape))
        total = term if total is None else op.Add(total, term)
    assert total is not None
    result = op.reshape(total, [batch, outputs, *windows])
    if bias is None:
        return result
    return op.Add(result, op.reshape(bias, [outputs, *[1] * len(kernel)]))


def exact_transposed(
    op: OpBuilder,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
) -> Value:
    """Return the transposed convolution: a convolution of the input dilated by the stride.

    Args:
        op: Creates nodes.
        x: [N, C, *sizes].
        weight: [C, O / groups, *kernel], of static sizes.
        bias: [O] or None.
        stride: Step of the window in the result per axis.
        padding: Number of elements cut from both ends of the result per axis.
        output_padding: Number of elements added at the end of the result per axis.
        groups: Number of independent groups of channels.
        dilation: Distance of the window's elements per axis.
    """
    axes = len(stride)
    inputs, outputs, *kernel = _known(op, weight)
    swapped = op.reshape(weight, [groups, inputs // groups, outputs, *kernel])
    swapped = op.transpose(swapped, [0, 2, 1, *range(3, 3 + axes)])
    flipped = op.reshape(swapped, [groups * outputs, inputs // groups, *kernel])
    # With a negative step, an end far below zero includes the first element.
    last, ends = [-1] * axes, [-(2**62)] * axes
    flipped = op.Slice(flipped, last, ends, list(range(2, 2 + axes)), last)
    flipped = op.reshape(flipped, [groups * outputs, inputs // groups, *kernel])
    spread = x
    for axis, step in enumerate(stride, start=2):
        spread = _spread(op, spread, axis, step)
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    # A full convolution, cut by the padding.
    begin = [r - p for r, p in zip(reach, padding, strict=True)]
    end = [b + o for b, o in zip(begin, output_padding, strict=True)]
    ones = [1] * axes
    return exact_convolution(op, spread, flipped, bias, ones, [*begin, *end], dilation, groups)


def _known(op: OpBuilder, weight: Value) -> list[int]:
    """Return the sizes of a weight, which must be static since its elements are read one by one.

    Raises:
        LoweringError: If they are symbolic.
    """
    dims = dims_of(weight)
    if not is_static(dims):
        raise LoweringError(
            f"convolution of {dtype_of(weight)} with a weight of symbolic sizes {list(dims)}",
            op.scope.where,
            "make the sizes of the weight static, or convolve in float32",
        )
    return [int(d) for d in dims]


def _spread(op: OpBuilder, x: Value, axis: int, step: int) -> Value:
    """Return x with step - 1 zeros between the elements of an axis."""
    if step == 1:
        return x
    dims = list(dims_of(x))
    apart = op.reshape(x, [*dims[: axis + 1], 1, *dims[axis + 1 :]])
    zeros = op.expand(op.const(0, dtype_of(x)), [*dims[: axis + 1], step - 1, *dims[axis + 1 :]])
    filled = op.Concat(apart, zeros, axis=axis + 1)
    long = op.reshape(filled, [*dims[:axis], as_dim(dims[axis] * step), *dims[axis + 1 :]])
    dims[axis] = as_dim(dims[axis] * step - (step - 1))
    return op.reshape(op.slice(long, axis, 0, dims[axis]), dims)


def pad_sizes(
    op: OpBuilder, x: Value, pads: Sequence[Dim], value: float
) -> tuple[Value, list[Dim]]:
    """Return [N, C, *sizes] with its sizes padded (cut, if negative), and the new sizes."""
    axes = len(pads) // 2
    sizes = [
        as_dim(s + b + e) for s, b, e in zip(dims_of(x)[2:], pads[:axes], pads[axes:], strict=True)
    ]
    if all(p == 0 for p in pads):
        return x, sizes
    both = [0, 0, *pads[:axes], 0, 0, *pads[axes:]]
    padded = op.Pad(x, op.shape(both), op.like(x, value))
    return padded, sizes


def window(
    op: OpBuilder,
    x: Value,
    place: Sequence[int],
    windows: Sequence[Dim],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Value:
    """Return the element at one position of every window, [N, C, *windows]."""
    starts = [p * d for p, d in zip(place, dilation, strict=True)]
    ends = [as_dim(b + (w - 1) * t + 1) for b, w, t in zip(starts, windows, stride, strict=True)]
    axes = list(range(2, 2 + len(starts)))
    return op.Slice(x, starts, op.shape(ends), axes, list(stride))
