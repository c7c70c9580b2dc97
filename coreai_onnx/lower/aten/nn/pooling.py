"""Max pooling and average pooling over one, two and three axes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.lower.aten.nn.exact_pooling import exact_average, exact_maximum
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value, dims_of, dtype_of, numel, rank_of
from coreai_onnx.lower.walk.registry import lowers

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
