"""Max pooling and average pooling over one, two and three axes.

Element by element of the window for dtypes that onnxruntime's ops do not support.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import sympy
import torch

from coreai_onnx.lower.aten.nn.exact_convolution import pad_sizes, window
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Dim, Value, as_dim, dims_of, dtype_of, numel, rank_of
from coreai_onnx.lower.walk.registry import lowers


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


_MAX_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8)
_AVERAGE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@lowers("aten.max_pool1d.default", axes=1)
@lowers("aten.max_pool2d.default", "aten.mkldnn_max_pool2d.default", axes=2)
@lowers("aten.max_pool3d.default", "aten.mkldnn_max_pool3d.default", axes=3)
@lowers("aten.max_pool1d_with_indices.default", axes=1, indices=True)
@lowers("aten.max_pool2d_with_indices.default", axes=2, indices=True)
@lowers("aten.max_pool3d_with_indices.default", axes=3, indices=True)
def max_pool(
    op: OpBuilder,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    *,
    axes: int,
    ceil_mode: bool = False,
    indices: bool = False,
) -> Value | tuple[Value, Value]:
    """The maximum of every window, with its position in the flattened axes if requested."""
    kernel, pads = per_axis(kernel_size, axes), per_axis(padding, axes)
    # Without strides, torch uses the sizes of the window.
    strides, dilations = per_axis(stride or kernel_size, axes), per_axis(dilation, axes)
    batched = op.unsqueeze(self, [0]) if rank_of(self) == axes + 1 else self
    places: Value | None = None
    if dtype_of(self) in _MAX_DTYPES:
        producer = batched.producer()
        padded = producer is not None and producer.op_type == "Pad"
        largest, *positions = op.MaxPool(
            # onnxruntime's PadFusion makes the zeros of a Pad the padding of MaxPool, which is -inf
            # (seen in 1.31). Without bounds, Clip returns its input, and keeps the nodes apart.
            op.Clip(batched) if padded else batched,
            kernel_shape=kernel,
            strides=strides,
            pads=[*pads, *pads],
            dilations=dilations,
            ceil_mode=int(ceil_mode),
            _outputs=2 if indices else 1,
        )
        if indices:
            # ONNX counts positions through batch and channels, torch within the pooled axes
            places = op.Mod(positions[0], op.dim(numel(dims_of(self)[-axes:])))
    else:
        largest, places = exact_maximum(
            op, batched, kernel, strides, pads, dilations, ceil_mode=ceil_mode, indices=indices
        )
    results = [
        x if batched is self else op.squeeze(x, [0]) for x in (largest, places) if x is not None
    ]
    return (results[0], results[1]) if indices else results[0]


@lowers("aten.avg_pool1d.default", axes=1)
@lowers("aten.avg_pool2d.default", axes=2)
@lowers("aten.avg_pool3d.default", axes=3)
def avg_pool(
    op: OpBuilder,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    divisor_override: int | None = None,
    *,
    axes: int,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:
    """The sum of every window, divided by the count of its elements or by a given divisor."""
    x, divisor, with_pad = self, divisor_override, count_include_pad
    kernel, pads = per_axis(kernel_size, axes), per_axis(padding, axes)
    strides = per_axis(stride or kernel_size, axes)
    batched = op.unsqueeze(x, [0]) if rank_of(x) == axes + 1 else x
    if axes > 1 and op.keeps(x):
        result = op.composite(
            f"avg_pool_{axes}d",
            [batched],
            kernel_size=kernel,
            stride=strides,
            padding=[*pads, *pads],
            ceil_mode=ceil_mode,
            count_include_pad=with_pad,
            divisor_override=divisor,
        )
    # a window that exceeds the padded input is averaged over a smaller count, so that its sum
    # cannot be computed from the average
    elif dtype_of(x) in _AVERAGE_DTYPES and not (divisor is not None and ceil_mode):
        result = op.AveragePool(
            batched,
            kernel_shape=kernel,
            strides=strides,
            pads=[*pads, *pads],
            ceil_mode=int(ceil_mode),
            # With a divisor, every window counts all its elements, so that its sum can be restored.
            count_include_pad=int(with_pad or divisor is not None),
        )
        if divisor is not None:
            size = numel(kernel)
            assert isinstance(size, int)
            result = op.Mul(result, size / divisor)
    else:
        result = exact_average(
            op,
            batched,
            kernel,
            strides,
            pads,
            ceil_mode=ceil_mode,
            count_include_pad=with_pad,
            divisor=divisor,
        )
    return op.squeeze(result, [0]) if batched is not x else result


def per_axis(numbers: Sequence[int], axes: int) -> list[int]:
    """Return one number per axis; a single number is repeated."""
    return [int(n) for n in numbers] * (axes if len(numbers) == 1 else 1)
