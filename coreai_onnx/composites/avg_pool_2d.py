"""Average pooling over two axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from coreai_onnx.composites.checks import Attributes, Dims
from coreai_onnx.composites.declaration import Attribute, Composite, Input


def avg_pool_2d(
    input: torch.Tensor,
    *,
    kernel_size: Sequence[int] = (1, 1),
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    ceil_mode: int = 0,
    count_include_pad: int = 1,
    divisor_override: int | None = None,
) -> torch.Tensor:
    """Return the average of every window, as ``torch.nn.functional.avg_pool2d`` does.

    Args:
        input: ``[batch, channels, height, width]``, floating.
        kernel_size: Height and width of a window.
        stride: Distance between windows.
        padding: Rows and columns of zeros: at the start of each axis, then at the end of each.
        ceil_mode: Nonzero: a window that starts inside may extend beyond the end.
        count_include_pad: Nonzero: the divisor counts the zeros of the padding, but never elements
            beyond the padding.
        divisor_override: Divisor instead of the count.

    Returns:
        ``[batch, channels, windows, windows]`` in the dtype of ``input``; computed in float32
        (float64 in float64), rounded once.
    """
    options = (stride, padding, ceil_mode, count_include_pad, divisor_override)
    return averages(torch.nn.functional.avg_pool2d, input, kernel_size, *options)


def averages(
    pool: Callable[..., torch.Tensor],
    input: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: int,
    count_include_pad: int,
    divisor_override: int | None,
) -> torch.Tensor:
    """Call a pooling function of torch, which has one padding for both ends of an axis.

    Raises:
        ValueError: If the paddings of an axis differ.
    """
    count = len(kernel_size)
    before, behind = tuple(padding[:count]), tuple(padding[count:])
    if before != behind:
        raise ValueError(f"padding must be the same at both ends of an axis, is {padding}")
    options = (bool(ceil_mode), bool(count_include_pad), divisor_override)
    wide = torch.float64 if input.dtype == torch.float64 else torch.float32
    result = pool(input.to(wide), tuple(kernel_size), tuple(stride), before, *options)
    return result.to(input.dtype)


def check_windows(dims: Dims, attributes: Attributes) -> str:
    """Return what is wrong with windows: one number per axis, paddings of half a window at most."""
    axes = len(dims["input"]) - 2
    kernel, stride, padding = (attributes[n] for n in ("kernel_size", "stride", "padding"))
    for name, given, wanted in (
        ("kernel_size", kernel, axes),
        ("stride", stride, axes),
        ("padding", padding, 2 * axes),
    ):
        if len(given) != wanted:
            return f"{name} has {len(given)} numbers, {wanted} are needed"
    if min([*kernel, *stride]) < 1:
        return f"kernel_size is {kernel} and stride {stride}, at least 1 is needed"
    if any(not 0 <= 2 * p <= k for p, k in zip(padding, [*kernel, *kernel], strict=True)):
        return f"padding is {padding}, at most half of kernel_size {kernel} is allowed"
    return "divisor_override is 0" if attributes["divisor_override"] == 0 else ""


COMPOSITE = Composite(
    name="avg_pool_2d",
    inputs=(Input("input", dims="N C H W", aliases=("x", "hidden_states", "inputs")),),
    outputs=("output",),
    output_dims=("?",),
    attributes=(
        Attribute("kernel_size", "ints", (1, 1)),
        Attribute("stride", "ints", (1, 1)),
        Attribute("padding", "ints", (0, 0, 0, 0)),
        Attribute("ceil_mode", "int", 0),
        Attribute("count_include_pad", "int", 1),
        Attribute("divisor_override", "int", None, structural=True),
    ),
    reference=avg_pool_2d,
    formula="sum(window of input) / count(window)",
    variant_axes=(("divisor",),),
    check=check_windows,
)
