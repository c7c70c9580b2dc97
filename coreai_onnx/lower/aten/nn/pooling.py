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


def _register_max_pool(axes: int, *names: str, indices: bool = False) -> None:
    """Register max pools over a number of axes, which a kernel of one number does not tell."""

    @lowers(*names)
    def max_pool(
        op: OpBuilder,
        self: Value,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        *,
        ceil_mode: bool = False,
    ) -> Value | tuple[Value, Value | None]:
        """The maximum of every window, with its position in the flattened axes if requested."""
        sizes = (kernel_size, stride, padding, dilation)
        result = _max_pool(op, self, axes, *sizes, ceil_mode=ceil_mode, indices=indices)
        return result if indices else result[0]


def _register_avg_pool(axes: int) -> None:
    @lowers(f"aten.avg_pool{axes}d.default")
    def avg_pool(
        op: OpBuilder,
        self: Value,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        divisor_override: int | None = None,
        *,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Value:
        """The sum of every window, divided by the count of its elements or by a given divisor."""
        sizes = (kernel_size, stride, padding, divisor_override)
        return _avg_pool(op, self, axes, *sizes, ceil_mode=ceil_mode, with_pad=count_include_pad)


_register_max_pool(1, "aten.max_pool1d.default")
_register_max_pool(2, "aten.max_pool2d.default", "aten.mkldnn_max_pool2d.default")
_register_max_pool(3, "aten.max_pool3d.default", "aten.mkldnn_max_pool3d.default")
for _axes in (1, 2, 3):
    _register_max_pool(_axes, f"aten.max_pool{_axes}d_with_indices.default", indices=True)
    _register_avg_pool(_axes)


def _max_pool(
    op: OpBuilder,
    x: Value,
    axes: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *,
    ceil_mode: bool,
    indices: bool,
) -> tuple[Value, Value | None]:
    """Return the maxima and, if requested, their positions within the pooled axes."""
    kernel, pads = per_axis(kernel_size, axes), per_axis(padding, axes)
    # Without strides, torch uses the sizes of the window.
    strides, dilations = per_axis(stride or kernel_size, axes), per_axis(dilation, axes)
    batched = op.unsqueeze(x, [0]) if rank_of(x) == axes + 1 else x
    places: Value | None = None
    if dtype_of(x) in _MAX_DTYPES:
        largest, *positions = op.MaxPool(
            batched,
            kernel_shape=kernel,
            strides=strides,
            pads=[*pads, *pads],
            dilations=dilations,
            ceil_mode=int(ceil_mode),
            _outputs=2 if indices else 1,
        )
        if indices:
            # ONNX counts positions through batch and channels, torch within the pooled axes
            places = op.Mod(positions[0], op.dim(numel(dims_of(x)[-axes:])))
    else:
        largest, places = exact_maximum(
            op, batched, kernel, strides, pads, dilations, ceil_mode=ceil_mode, indices=indices
        )
    if batched is not x:
        return op.squeeze(largest, [0]), None if places is None else op.squeeze(places, [0])
    return largest, places


def _avg_pool(
    op: OpBuilder,
    x: Value,
    axes: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    divisor: int | None,
    *,
    ceil_mode: bool,
    with_pad: bool,
) -> Value:
    """Return the averages; a given divisor replaces the count."""
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


def per_axis(given: Sequence[int], axes: int) -> list[int]:
    """Return one number per axis; a single number is repeated."""
    return [int(g) for g in given] * (axes if len(given) == 1 else 1)
