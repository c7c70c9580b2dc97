"""Pooling to a given size: window i of an axis covers ⌊i·in/out⌋ … ⌈(i+1)·in/out⌉."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.lower.aten.nn.normalization import wide
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import (
    Dim,
    Value,
    dims_of,
    dtype_of,
    is_static,
    numel,
    rank_of,
    set_dims,
)
from coreai_onnx.lower.walk.registry import lowers

_KERNEL_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@lowers(
    "aten.adaptive_avg_pool1d.default",
    "aten.adaptive_avg_pool2d.default",
    "aten.adaptive_avg_pool3d.default",
    "aten._adaptive_avg_pool2d.default",
    "aten._adaptive_avg_pool3d.default",
)
def adaptive_avg_pool(op: OpBuilder, self: Value, output_size: Sequence[Dim]) -> Value:
    """The average of every window, computed axis by axis, since windows are boxes."""
    axes = len(output_size)
    sizes = dims_of(self)[-axes:]
    # ONNX's pools require a batch axis.
    batched = rank_of(self) == axes + 2
    if batched and dtype_of(self) in _KERNEL_DTYPES and 0 not in dims_of(self):
        if all(o == 1 for o in output_size):
            return op.GlobalAveragePool(self)
        kernel = _even_windows(sizes, output_size)
        if kernel is not None:
            return op.AveragePool(self, kernel_shape=kernel, strides=kernel)
    x = wide(op, self)
    for axis, size in enumerate(output_size, start=rank_of(self) - axes):
        x = _average_axis(op, x, axis, size)
    return x


@lowers(*(f"aten.adaptive_max_pool{axes}d.default" for axes in (1, 2, 3)))
def adaptive_max_pool(
    op: OpBuilder, self: Value, output_size: Sequence[Dim]
) -> tuple[Value, Value]:
    """The maximum of every window, and its position in the flattened axes."""
    axes = len(output_size)
    sizes = dims_of(self)[-axes:]
    kernel = _even_windows(sizes, output_size)
    if kernel is not None and rank_of(self) == axes + 2 and dtype_of(self) in _KERNEL_DTYPES:
        largest, places = op.MaxPool(self, kernel_shape=kernel, strides=kernel, _outputs=2)
        # Indices of MaxPool count through the whole tensor, those of torch through one channel.
        return largest, op.Mod(places, op.dim(numel(sizes)))
    windows = _gathered(op, self, output_size)
    count = op.reshape(op.Range(0, op.dim(numel(sizes)), 1), sizes)
    positions = _gathered(op, count, output_size)
    winner = op.ArgMax(windows, axis=-1, keepdims=1)
    here = op.Expand(positions, op.Shape(windows))
    return (
        op.Squeeze(op.GatherElements(windows, winner, axis=-1), [-1]),
        op.Squeeze(op.GatherElements(here, winner, axis=-1), [-1]),
    )


# ---------------------------------------------------------------------- parts
def _even_windows(sizes: Sequence[Dim], output_size: Sequence[Dim]) -> list[int] | None:
    """Return the size of the windows, if it is known and equal and they do not overlap."""
    if not is_static(sizes) or not is_static(output_size) or 0 in sizes or 0 in output_size:
        return None
    pairs = [(int(s), int(o)) for s, o in zip(sizes, output_size, strict=True)]
    return [s // o for s, o in pairs] if all(s % o == 0 for s, o in pairs) else None


def _average_axis(op: OpBuilder, x: Value, axis: int, size: Dim) -> Value:
    """Return x averaged along one axis to a size."""
    dims = dims_of(x)
    if dims[axis] == size:
        return x
    if size == 1:
        return op.ReduceMean(x, [axis], keepdims=1)
    places, inside, counts = _places(op, dims[axis], size)
    windows = op.Gather(x, places, axis=axis)
    after = [1] * (len(dims) - axis - 1)
    mask = (
        op.Reshape(inside, op.Concat(op.Shape(inside), op.const(after), axis=0))
        if after
        else inside
    )
    chosen = op.Where(mask, windows, op.like(x, 0))
    total = op.ReduceSum(chosen, [axis + 1], keepdims=0)
    mean = op.Div(total, op.reshape(op.cast(counts, dtype_of(x)), [size, *after]))
    return set_dims(mean, (*dims[:axis], size, *dims[axis + 1 :]))


def _gathered(op: OpBuilder, x: Value, output_size: Sequence[Dim]) -> Value:
    """Return [..., *output_size, window]: the elements of every window, some of them repeated."""
    axes = len(output_size)
    lead = rank_of(x) - axes
    windows = x
    for i, size in enumerate(output_size):
        places, _, _ = _places(op, dims_of(x)[lead + i], size)
        windows = op.Gather(windows, places, axis=lead + 2 * i)
    outer = [lead + 2 * i for i in range(axes)]
    inner = [lead + 2 * i + 1 for i in range(axes)]
    ordered = op.Transpose(windows, perm=[*range(lead), *outer, *inner])
    shape = op.Concat(op.shape([*dims_of(x)[:lead], *output_size]), op.const([-1]), axis=0)
    return op.Reshape(ordered, shape)


def _places(op: OpBuilder, size: Dim, output: Dim) -> tuple[Value, Value, Value]:
    """Return the indices of every window [out, widest], which of them are valid, and counts [out].

    A window narrower than the widest repeats its last element.
    """
    if isinstance(size, int) and isinstance(output, int):
        return _static_places(op, size, output)
    total, parts = op.dim(size), op.dim(output)
    index = op.Range(0, parts, 1)
    start = op.Div(op.Mul(index, total), parts)
    above = op.Add(op.Mul(op.Add(index, 1), total), op.Sub(parts, 1))
    end = op.Div(above, parts)
    counts = op.Sub(end, start)
    steps = op.Range(0, op.ReduceMax(counts, keepdims=0), 1)
    raw = op.Add(op.Unsqueeze(start, [1]), steps)
    last = op.Unsqueeze(end, [1])
    return op.Min(raw, op.Sub(last, 1)), op.Less(raw, last), counts


def _static_places(op: OpBuilder, size: int, output: int) -> tuple[Value, Value, Value]:
    index = torch.arange(output)
    # ⌈x⌉ = -⌊-x⌋
    start, end = index * size // output, -(-(index + 1) * size // output)
    widest = int((end - start).max()) if output else 0
    raw = start[:, None] + torch.arange(widest)
    places = torch.minimum(raw, end[:, None] - 1)
    return op.const(places), op.const(raw < end[:, None]), op.const(end - start)
