"""The bodies of average pooling, with windows from the calls, and of the pixel shuffle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from coreai_onnx.bodies.body import BodyBuilder, Variant
from coreai_onnx.bodies.writers import writes
from coreai_onnx.lower.nodes.values import Value


def _pool_words(variant: Variant) -> list[str]:
    return [] if variant.attributes.get("divisor_override") is None else ["divisor"]


@writes("avg_pool_2d", "avg_pool_3d", words=_pool_words)
def average_pool(b: BodyBuilder) -> Value:
    """AveragePool, or sums of windows for float64 and for a divisor that replaces the count."""
    first = b.variant.examples[0]
    assert first is not None
    x = b.widened(b.inputs[0])
    has_divisor = b.attributes["divisor_override"] is not None
    if not has_divisor and b.dtype != torch.float64:
        averages = _average_pool(
            b,
            x,
            pads=b.ref("padding"),
            ceil_mode=b.ref("ceil_mode"),
            count_include_pad=b.ref("count_include_pad"),
        )
        return b.op.cast(averages, b.dtype)
    axes = [_Axis(b, x, i, count=len(first.dims) - 2) for i in range(len(first.dims) - 2)]
    none = b.op.const([0, 0])
    pads = b.op.Concat(none, *(a.before for a in axes), none, *(a.behind for a in axes), axis=0)
    total = _window_sums(b, b.op.Pad(x, pads), axes)
    if has_divisor:
        divisor = b.attribute("divisor_override")
    else:
        divisor = axes[0].counted()
        for axis in axes[1:]:
            divisor = b.op.Mul(b.op.unsqueeze(divisor, [-1]), axis.counted())
    return b.op.cast(b.op.Div(total, b.widened(divisor)), b.dtype)


def _average_pool(b: BodyBuilder, x: Value, **options: Any) -> Value:
    options = {"kernel_shape": b.ref("kernel_size"), "strides": b.ref("stride"), **options}
    pooled: Value = b.op.node("AveragePool", x, **options)
    return pooled


def _window_sums(b: BodyBuilder, x: Value, axes: Sequence[_Axis]) -> Value:
    """Return the sum of every window that lies completely in the padded input.

    onnxruntime has no float64 AveragePool: for float64 each axis in turn is gathered and summed.
    """
    if b.dtype != torch.float64:
        size = b.op.ReduceProd(b.attribute("kernel_size"), keepdims=0)
        return b.op.Mul(_average_pool(b, x), b.widened(size))
    for place, axis in enumerate(axes):
        windows = b.op.Gather(x, axis.elements(), axis=2 + place)
        x = b.op.ReduceSum(windows, [3 + place], keepdims=0)
    return x


class _Axis:
    """The windows along one axis; every number is a value of shape [1].

    Args:
        b: Creates the nodes.
        x: ``[N, C, *sizes]``.
        index: The index of the axis among the sizes.
        count: The number of sizes.
    """

    def __init__(self, b: BodyBuilder, x: Value, index: int, *, count: int) -> None:
        """Count the windows: each begins in the input or in the padding before it."""
        op = self.op = b.op
        self.size = op.Shape(x, start=2 + index, end=3 + index)
        self.kernel = op.Gather(b.attribute("kernel_size"), [index])
        self.stride = op.Gather(b.attribute("stride"), [index])
        padding = b.attribute("padding")
        self.before = op.Gather(padding, [index])
        self.after = op.Gather(padding, [count + index])
        self.include_pad = op.unsqueeze(b.attribute("count_include_pad"), [0])
        ceil = b.attribute("ceil_mode")
        front = op.Add(self.size, self.before)
        room = op.Sub(op.Add(front, self.after), self.kernel)
        # ⌈a / b⌉ = ⌊(a + b - 1) / b⌋
        rounding = op.Mul(op.Sub(self.stride, 1), ceil)
        fitting = op.Div(op.Add(room, rounding), self.stride)
        # With ceil_mode, torch drops a window that would begin in the padding behind the input.
        last = op.Min(fitting, op.Div(op.Sub(front, 1), self.stride))
        self.windows = op.Add(last, 1)
        end = op.Add(op.Mul(last, self.stride), self.kernel)
        self.behind = op.Sub(end, front)

    def starts(self) -> Value:
        """Return the start of each window in the padded input."""
        windows = self.op.squeeze(self.windows, [0])
        return self.op.Mul(self.op.Range(0, windows, 1), self.stride)

    def elements(self) -> Value:
        """Return the indices of every window's elements, ``[windows, kernel]``."""
        within = self.op.Range(0, self.op.squeeze(self.kernel, [0]), 1)
        return self.op.Add(self.op.unsqueeze(self.starts(), [1]), within)

    def counted(self) -> Value:
        """Return the number of elements that each window averages, ``[windows]``."""
        op = self.op
        begin = op.Sub(self.starts(), self.before)
        border = op.Mul(self.before, self.include_pad)
        # Elements that ceil_mode adds behind the padding never count.
        limit = op.Add(self.size, op.Mul(self.after, self.include_pad))
        end = op.Min(op.Add(begin, self.kernel), limit)
        return op.Sub(end, op.Max(begin, op.Neg(border)))


def _shuffle_words(variant: Variant) -> list[str]:
    return [] if len(variant.inputs["input"].dims) == 4 else ["any_rank"]


@writes("pixel_shuffle", words=_shuffle_words)
def pixel_shuffle(b: BodyBuilder) -> Value:
    """DepthToSpace on four axes; the axes before the channels are merged into one."""
    op, x = b.op, b.inputs[0]
    # onnxruntime does not run DepthToSpace in bfloat16.
    wide = op.cast(x, torch.float32) if b.dtype.itemsize < 4 else x
    if len(b.variant.inputs["input"].dims) == 4:
        moved = op.DepthToSpace(wide, blocksize=b.ref("upscale_factor"), mode="CRD")
        return op.cast(moved, b.dtype)
    lead, tail = op.Shape(x, end=-3), op.Shape(x, start=-3)
    # the product of no sizes is one; ReduceProd returns nothing for it
    samples = op.ReduceProd(op.Concat(lead, op.const([1]), axis=0), keepdims=1)
    merged = op.Reshape(wide, op.Concat(samples, tail, axis=0), allowzero=1)
    moved = op.DepthToSpace(merged, blocksize=b.ref("upscale_factor"), mode="CRD")
    dims = op.Concat(lead, op.Shape(moved, start=1), axis=0)
    return op.cast(op.Reshape(moved, dims, allowzero=1), b.dtype)
