"""Convolutions of one, two and three axes, and transposed ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from coreai_onnx.lower.aten.nn.exact_convolution import exact_convolution, exact_transposed
from coreai_onnx.lower.aten.nn.pooling import per_axis
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Dim, Value, dims_of, dtype_of, is_static, rank_of
from coreai_onnx.lower.walk.registry import lowers

_KERNEL_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@lowers(
    "aten.convolution.default", "aten._convolution.default", "aten.convolution_overrideable.default"
)
def convolution(
    op: OpBuilder,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *,
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    """The convolution, or its transpose, of input with weight, plus bias."""
    if transposed:
        return conv_transpose(
            op, input, weight, bias, stride, padding, output_padding, groups, dilation
        )
    return _convolution(op, input, weight, bias, stride, padding, dilation, groups)


@lowers("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")
@lowers("aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding")
def conv(
    op: OpBuilder,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] | str = "valid",
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Value:
    """Σ over channels and window of input * weight, plus bias; "same" pads more at the end."""
    return _convolution(op, input, weight, bias, stride, padding, dilation, groups)


@lowers("aten.conv_tbc.default")
def conv_tbc(op: OpBuilder, self: Value, weight: Value, bias: Value, pad: int = 0) -> Value:
    """A convolution over time of [time, batch, channel] with weight [width, in, out]."""
    x, w = op.transpose(self, [1, 2, 0]), op.transpose(weight, [2, 1, 0])
    return op.transpose(_convolution(op, x, w, bias, [1], [pad], [1], 1), [2, 0, 1])


# torch decomposes these into aten.convolution. Values would then be named after that, and tracing
# the decomposition takes 1 ms per layer.
@lowers(
    "aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input"
)
def conv_transpose(
    op: OpBuilder,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> Value:
    """The transpose of a convolution: every input element spreads the weight over a window."""
    axes = rank_of(weight) - 2
    stride, padding = per_axis(stride, axes), per_axis(padding, axes)
    output_padding, dilation = per_axis(output_padding, axes), per_axis(dilation, axes)
    kernel = dims_of(weight)[2:]
    unbatched = rank_of(input) == axes + 1
    x = op.unsqueeze(input, [0]) if unbatched else input
    bias = None if bias is None else op.cast(bias, dtype_of(input))
    # onnxruntime requires the output padding to be smaller than the stride
    plain = all(o < s for o, s in zip(output_padding, stride, strict=True))
    if plain and dtype_of(input) in _KERNEL_DTYPES and 0 not in dims_of(x):
        options: dict[str, Any] = {"group": groups, "strides": stride, "dilations": dilation}
        if any(output_padding):
            options["output_padding"] = output_padding
        pads = [*padding, *padding]
        result = op.ConvTranspose(x, weight, bias, pads=pads, **options, **_kernel_shape(kernel))
    elif not is_static(kernel) and dtype_of(input) in _KERNEL_DTYPES:
        # exact_transposed needs static sizes. The output padding restores elements that the padding
        # would cut at the end, or appends zeros.
        ends = [max(p - o, 0) for p, o in zip(padding, output_padding, strict=True)]
        more = [max(o - p, 0) for p, o in zip(padding, output_padding, strict=True)]
        options = {"group": groups, "strides": stride, "dilations": dilation}
        result = op.ConvTranspose(x, weight, pads=[*padding, *ends], **options)
        result = op.Pad(result, op.const([0] * (axes + 4) + more))
        # Added after the padding, whose elements have the bias too.
        if bias is not None:
            result = op.Add(result, op.Reshape(bias, [-1, *[1] * axes]))
    else:
        result = exact_transposed(
            op, x, weight, bias, stride, padding, output_padding, groups, dilation
        )
    return op.squeeze(result, [0]) if unbatched else result


# ---------------------------------------------------------------------- parts
def _convolution(
    op: OpBuilder,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
    groups: int,
) -> Value:
    """Lower a convolution; an input without a batch axis temporarily gets one."""
    axes = rank_of(weight) - 2
    stride, dilation = per_axis(stride, axes), per_axis(dilation, axes)
    kernel = dims_of(weight)[2:]
    pads = _pads(padding, kernel, dilation, axes)
    unbatched = rank_of(input) == axes + 1
    x = op.unsqueeze(input, [0]) if unbatched else input
    bias = None if bias is None else op.cast(bias, dtype_of(input))
    if dtype_of(input) in _KERNEL_DTYPES and 0 not in dims_of(x):
        options: dict[str, Any] = {"group": groups, "strides": stride, "dilations": dilation}
        result = op.Conv(x, weight, bias, pads=pads, **options, **_kernel_shape(kernel))
    else:
        result = exact_convolution(op, x, weight, bias, stride, pads, dilation, groups)
    return op.squeeze(result, [0]) if unbatched else result


def _pads(
    padding: Sequence[int] | str, kernel: Sequence[Dim], dilation: Sequence[int], axes: int
) -> list[int]:
    """Return the padding at the start of every axis, then at the end of every axis."""
    if padding == "valid":
        return [0] * 2 * axes
    if padding == "same":
        total = [d * (int(k) - 1) for k, d in zip(kernel, dilation, strict=True)]
        return [*(t // 2 for t in total), *(t - t // 2 for t in total)]
    both = per_axis([int(p) for p in padding], axes)
    return [*both, *both]


def _kernel_shape(kernel: Sequence[Dim]) -> dict[str, list[int]]:
    return {"kernel_shape": [int(k) for k in kernel]} if is_static(kernel) else {}
