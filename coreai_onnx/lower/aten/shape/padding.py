"""Padding, and conversion between images and columns of blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.errors import LoweringError
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.tensors import floor_div, positions, sliced
from coreai_onnx.lower.nodes.values import (
    Dim,
    Number,
    Value,
    as_dim,
    dims_of,
    dtype_of,
    rank_of,
    set_dims,
)
from coreai_onnx.lower.walk.registry import lowers

_REFLECTIONS, _REPLICATIONS = (
    [f"aten.{kind}_pad{n}d.default" for n in (1, 2, 3)] for kind in ("reflection", "replication")
)
_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


# Whole, because the decompositions of these two index the input by computed positions.
@lowers(*_REFLECTIONS, whole=True, renamed={"pad": "padding"}, mode="reflect")
@lowers(*_REPLICATIONS, whole=True, renamed={"pad": "padding"}, mode="replicate")
@lowers("aten._pad_circular.default", mode="circular")
@lowers("aten.constant_pad_nd.default", "aten.pad.default")
def pad(
    op: OpBuilder,
    self: Value,
    pad: Sequence[Dim],
    *,
    mode: str = "constant",
    value: Number | None = None,
) -> Value:
    """self padded with a value, its reflection, its edge, or circularly; a negative width crops."""
    return _padded(op, self, pad, _MODES[mode], 0 if value is None else value)


def _padded(op: OpBuilder, x: Value, widths: Sequence[Dim], mode: str, value: Number = 0) -> Value:
    """Pad the last axes; ``widths`` holds before and after per axis, starting at the last axis."""
    rank = rank_of(x)
    before: list[Dim] = [0] * rank
    after: list[Dim] = [0] * rank
    for i in range(len(widths) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = widths[2 * i], widths[2 * i + 1]
    for axis in range(rank):
        # The border is read from the axis before it is cropped.
        if mode in ("edge", "reflect") and _cuts(before[axis], after[axis]):
            x = _bordered(op, x, axis, int(before[axis]), int(after[axis]), mode)
            before[axis] = after[axis] = 0
        x, before[axis], after[axis] = _cut(op, x, axis, before[axis], after[axis])
    if all(w == 0 for w in (*before, *after)):
        return x
    if mode == "wrap":  # onnxruntime's Pad has this mode for some ranks only
        return _wrapped(op, x, before, after)
    pads = op.shape([*before, *after])
    dims = dims_of(x)
    if mode != "constant":
        result = op.Pad(x, pads, mode=mode)
    else:
        filler = torch.tensor(value).to(dtype_of(x))
        result = op.Pad(x, pads, op.const(filler) if value else None)
    return set_dims(
        result, [as_dim(b + d + a) for b, d, a in zip(before, dims, after, strict=True)]
    )


def _cuts(before: Dim, after: Dim) -> bool:
    """Whether the widths are known and one of them is negative."""
    are_static = isinstance(before, int) and isinstance(after, int)
    return are_static and (before < 0 or after < 0)


def _bordered(op: OpBuilder, x: Value, axis: int, before: int, after: int, mode: str) -> Value:
    """Gather the elements of a cropped and padded axis, which are read from the uncropped axis."""
    dims = dims_of(x)
    size, length = dims[axis], as_dim(before + dims[axis] + after)
    index = positions(op, length)
    index = op.Sub(index, before) if before else index
    last = op.dim(as_dim(size - 1))
    if mode == "edge":
        index = op.Max(op.Min(index, last), 0)
    else:
        index = op.Abs(index)
        index = op.Where(op.Greater(index, last), op.Sub(op.Mul(last, 2), index), index)
    taken = op.Gather(x, index, axis=axis)
    return set_dims(taken, (*dims[:axis], length, *dims[axis + 1 :]))


def _cut(op: OpBuilder, x: Value, axis: int, before: Dim, after: Dim) -> tuple[Value, Dim, Dim]:
    """Apply the negative widths of an axis; return the remaining widths."""
    first = -before if isinstance(before, int) and before < 0 else 0
    cut_end = isinstance(after, int) and after < 0
    if not first and not cut_end:
        return x, before, after
    dims = dims_of(x)
    length = as_dim(dims[axis] - first + (after if cut_end else 0))
    x = sliced(op, x, axis, first, after if cut_end else None)
    set_dims(x, (*dims[:axis], length, *dims[axis + 1 :]))
    return x, 0 if first else before, 0 if cut_end else after


def _wrapped(op: OpBuilder, x: Value, before: Sequence[Dim], after: Sequence[Dim]) -> Value:
    """Pad every axis circularly, by concatenation with its own ends."""
    for axis, (left, right) in enumerate(zip(before, after, strict=True)):
        dims = dims_of(x)
        size = dims[axis]
        parts = [x]
        if left != 0:
            parts.insert(0, op.slice(x, axis, as_dim(size - left), as_dim(size)))
        if right != 0:
            parts.append(op.slice(x, axis, 0, right))
        if len(parts) > 1:
            x = op.Concat(*parts, axis=axis)
            set_dims(x, (*dims[:axis], as_dim(left + size + right), *dims[axis + 1 :]))
    return x


# ---------------------------------------------------------------------- blocks as columns
@lowers("aten.im2col.default")
def im2col(
    op: OpBuilder,
    self: Value,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """The blocks of an image as columns: [N, C * kh * kw, blocks]."""
    batched = rank_of(self) == 4
    x = self if batched else op.unsqueeze(self, [0])
    (ph, pw), (kh, kw), (dh, dw), (sh, sw) = (
        _pair(a) for a in (padding, kernel_size, dilation, stride)
    )
    x = _padded(op, x, [pw, pw, ph, ph], "constant")
    n, c, height, width = dims_of(x)
    rows, tall = _block_index(op, height, kh, dh, sh)
    columns, wide = _block_index(op, width, kw, dw, sw)
    blocks = op.Gather(op.Gather(x, rows, axis=2), columns, axis=4)  # N C kh oh kw ow
    blocks = op.transpose(blocks, [0, 1, 2, 4, 3, 5])
    result = op.reshape(blocks, [n, as_dim(c * kh * kw), as_dim(tall * wide)])
    return result if batched else op.squeeze(result, [0])


def _pair(x: Sequence[int] | int) -> tuple[int, int]:
    numbers = [x] if isinstance(x, int) else list(x)
    return (numbers[0], numbers[-1])


def _block_index(
    op: OpBuilder, size: Dim, kernel: int, dilation: int, stride: int
) -> tuple[Value, Dim]:
    """Return the index [kernel, blocks] of every element of every block, and the blocks."""
    count = as_dim(floor_div(as_dim(size - dilation * (kernel - 1) - 1), stride) + 1)
    inside = op.const((torch.arange(kernel) * dilation).unsqueeze(1))
    starts = positions(op, count)
    if stride != 1:
        starts = op.Mul(starts, stride)
    return op.Add(inside, starts), count


@lowers("aten.col2im.default")
def col2im(
    op: OpBuilder,
    self: Value,
    output_size: Sequence[Dim],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """The image whose blocks are the columns; overlapping elements are added.

    Raises:
        LoweringError: For float64, which onnxruntime's Col2Im does not support, of symbolic size.
    """
    batched = rank_of(self) == 3
    x = self if batched else op.unsqueeze(self, [0])
    geometry = [_pair(a) for a in (kernel_size, dilation, padding, stride)]
    if dtype_of(x) in (torch.float64, torch.int64):
        result = _scattered_columns(op, x, output_size, *geometry)
    else:
        kernel, dilations, pads, strides = geometry
        result = op.Col2Im(
            x,
            op.shape(output_size),
            op.const(list(kernel)),
            dilations=list(dilations),
            pads=[*pads, *pads],
            strides=list(strides),
        )
    return result if batched else op.Squeeze(result, op.const([0]))


def _scattered_columns(
    op: OpBuilder,
    x: Value,
    size: Sequence[Dim],
    kernel: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int],
    stride: tuple[int, int],
) -> Value:
    if not all(isinstance(s, int) for s in size):
        raise LoweringError(
            f"aten.col2im.default: {dtype_of(x)} with a symbolic output size", op.scope.where
        )
    height, width = (int(s) + 2 * p for s, p in zip(size, padding, strict=True))
    n, rows, _ = dims_of(x)
    channels = floor_div(rows, kernel[0] * kernel[1])
    # Unfolding the numbers of the pixels gives the pixel to which each element is added.
    plane = torch.arange(height * width, dtype=torch.float64).view(1, 1, height, width)
    index = torch.nn.functional.unfold(plane, kernel, dilation, 0, stride).long().reshape(-1)
    count = index.numel()
    target = op.expand(op.like(x, 0), [n, channels, height * width])
    flat = op.reshape(x, [n, channels, count])
    where = op.expand(op.const(index), [n, channels, count])
    added = op.ScatterElements(target, where, flat, axis=2, reduction="add")
    image = op.reshape(set_dims(added, dims_of(target)), [n, channels, height, width])
    cut = [-padding[1], -padding[1], -padding[0], -padding[0]]
    return _padded(op, image, cut, "constant")
