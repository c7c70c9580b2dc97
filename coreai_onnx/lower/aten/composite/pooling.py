"""Average pooling, the pixel shuffle and vector norms as composites."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.lower.aten.composite.calls import is_covered
from coreai_onnx.lower.aten.nn.pooling import per_axis
from coreai_onnx.lower.build.builder import OpBuilder
from coreai_onnx.lower.build.values import (
    Number,
    Value,
    dims_of,
    dtype_of,
    rank_of,
    wrap_all,
)
from coreai_onnx.lower.walk.registry import composes


# ---------------------------------------------------------------------- averages
@composes("aten.avg_pool2d.default")
def avg_pool2d(
    op: OpBuilder,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value | None:
    """The composite ``avg_pool_2d``."""
    given = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _avg_pool(op, self, 2, *given)


@composes("aten.avg_pool3d.default")
def avg_pool3d(
    op: OpBuilder,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value | None:
    """The composite ``avg_pool_3d``."""
    given = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _avg_pool(op, self, 3, *given)


def _avg_pool(
    op: OpBuilder,
    x: Value,
    axes: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Value | None:
    """Call the composite on a batch; an input without a batch becomes a batch of one."""
    if not is_covered(x):
        return None
    batched = op.unsqueeze(x, [0]) if rank_of(x) == axes + 1 else x
    pads = per_axis(padding, axes)
    result = op.composite(
        f"avg_pool_{axes}d",
        [batched],
        kernel_size=per_axis(kernel_size, axes),
        stride=per_axis(stride or kernel_size, axes),
        padding=[*pads, *pads],
        ceil_mode=int(ceil_mode),
        count_include_pad=int(count_include_pad),
        divisor_override=divisor,
    )
    return op.squeeze(result, [0]) if batched is not x else result


# ---------------------------------------------------------------------- pixels
@composes("aten.pixel_shuffle.default", whole=True)
def pixel_shuffle(op: OpBuilder, self: Value, upscale_factor: int) -> Value | None:
    """The composite ``pixel_shuffle``."""
    if not is_covered(self):
        return None
    return op.composite("pixel_shuffle", [self], upscale_factor=upscale_factor)


# ---------------------------------------------------------------------- norms
@composes("aten.linalg_vector_norm.default")
def vector_norm(
    op: OpBuilder,
    self: Value,
    ord: Number = 2,
    dim: Sequence[int] | int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value | None:
    """The composite ``linalg_vector_norm``, after a cast if a dtype is given."""
    if rank_of(self) == 0 or 0 in dims_of(self):
        return None
    x = self if dtype is None or dtype == dtype_of(self) else op.cast(self, dtype)
    if not is_covered(x):
        return None
    axes = wrap_all(dim, rank_of(self))
    return op.composite("linalg_vector_norm", [x], ord=float(ord), axes=axes, keep_dim=int(keepdim))
