"""Average pooling over three axes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.composites.avg_pool_2d import averages, check_windows
from coreai_onnx.composites.declaration import Attribute, Composite, Input


def avg_pool_3d(
    input: torch.Tensor,
    *,
    kernel_size: Sequence[int] = (1, 1, 1),
    stride: Sequence[int] = (1, 1, 1),
    padding: Sequence[int] = (0, 0, 0, 0, 0, 0),
    ceil_mode: int = 0,
    count_include_pad: int = 1,
    divisor_override: int | None = None,
) -> torch.Tensor:
    """Return the average of every window, as ``torch.nn.functional.avg_pool3d`` does.

    Args:
        input: ``[batch, channels, depth, height, width]``, floating.
        kernel_size: Depth, height and width of a window.
        stride: Distance between windows.
        padding: Zeros: at the start of each axis, then at the end of each.
        ceil_mode: As in ``avg_pool_2d``.
        count_include_pad: As in ``avg_pool_2d``.
        divisor_override: Divisor instead of the count.

    Returns:
        ``[batch, channels, windows, windows, windows]`` in the dtype of ``input``; computed in
        float32 (float64 in float64), rounded once.
    """
    options = (stride, padding, ceil_mode, count_include_pad, divisor_override)
    return averages(torch.nn.functional.avg_pool3d, input, kernel_size, *options)


COMPOSITE = Composite(
    name="avg_pool_3d",
    inputs=(Input("input", dims="N C D H W", aliases=("x", "hidden_states", "inputs")),),
    outputs=("output",),
    output_dims=("?",),
    attributes=(
        Attribute("kernel_size", "ints", (1, 1, 1)),
        Attribute("stride", "ints", (1, 1, 1)),
        Attribute("padding", "ints", (0, 0, 0, 0, 0, 0)),
        Attribute("ceil_mode", "int", 0),
        Attribute("count_include_pad", "int", 1),
        Attribute("divisor_override", "int", None, structural=True),
    ),
    reference=avg_pool_3d,
    formula="sum(window of input) / count(window)",
    variant_axes=(("divisor",),),
    check=check_windows,
)
