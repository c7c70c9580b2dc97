"""Average pooling, and the pixel shuffle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from coreai_onnx.composites.checks import Attributes, Dims, compute_dtype, not_multiple, rank_below
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
    # As in ONNX's pads, the beginnings of all axes come before their ends.
    count = len(kernel_size)
    before, behind = tuple(padding[:count]), tuple(padding[count:])
    if before != behind:
        raise ValueError(f"padding must be the same at both ends of an axis, is {padding}")
    options = (bool(ceil_mode), bool(count_include_pad), divisor_override)
    wide = compute_dtype(input)
    result = pool(input.to(wide), tuple(kernel_size), tuple(stride), before, *options)
    return result.to(input.dtype)


def _check_windows(dims: Dims, attributes: Attributes) -> str:
    """Check that there is a number per axis, and that paddings are at most half of a window."""
    axes = len(dims["input"]) - 2
    kernel, stride, padding = (attributes[n] for n in ("kernel_size", "stride", "padding"))
    for name, values, count in (
        ("kernel_size", kernel, axes),
        ("stride", stride, axes),
        ("padding", padding, 2 * axes),
    ):
        if len(values) != count:
            return f"{name} must have {count} numbers, got {len(values)}"
    if min([*kernel, *stride]) < 1:
        return f"kernel_size and stride must be at least 1, got {kernel} and {stride}"
    # The limit of torch.
    if any(not 0 <= 2 * p <= k for p, k in zip(padding, [*kernel, *kernel], strict=True)):
        return f"padding must be at most half of kernel_size {kernel}, got {padding}"
    return "divisor_override is 0" if attributes["divisor_override"] == 0 else ""


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

    Inputs, options and results are those of :func:`avg_pool_2d`, with a depth before the height.
    """
    options = (stride, padding, ceil_mode, count_include_pad, divisor_override)
    return averages(torch.nn.functional.avg_pool3d, input, kernel_size, *options)


def _declared(reference: Callable[..., torch.Tensor], dims: str) -> Composite:
    axes = len(dims.split()) - 2
    return Composite(
        name=reference.__name__,
        inputs=(Input("input", dims=dims, aliases=("x", "hidden_states", "inputs")),),
        outputs=("output",),
        output_dims=("?",),
        attributes=(
            Attribute("kernel_size", "ints", (1,) * axes),
            Attribute("stride", "ints", (1,) * axes),
            Attribute("padding", "ints", (0, 0) * axes),
            Attribute("ceil_mode", "int", 0),
            Attribute("count_include_pad", "int", 1),
            Attribute("divisor_override", "int", None, structural=True),
        ),
        reference=reference,
        formula="sum(window of input) / count(window)",
        variant_axes=(("divisor",),),
        check=_check_windows,
    )


AVG_POOL_2D = _declared(avg_pool_2d, "N C H W")
AVG_POOL_3D = _declared(avg_pool_3d, "N C D H W")


def pixel_shuffle(input: torch.Tensor, *, upscale_factor: int = 1) -> torch.Tensor:
    """Return ``[..., C r², H, W]`` as ``[..., C, H r, W r]`` (Shi et al. 2016, eq. 4).

    Args:
        input: ``[..., channels, height, width]``, floating; ``channels`` a multiple of
            ``upscale_factor ** 2``.
        upscale_factor: ``r``: number of rows and columns per input pixel.

    Returns:
        The rearranged elements, in the dtype of ``input``.
    """
    return torch.pixel_shuffle(input, upscale_factor)


def _check(dims: Dims, attributes: Attributes) -> str:
    factor = attributes["upscale_factor"]
    if factor < 1:
        return f"upscale_factor must be at least 1, got {factor}"
    channels = dims["input"][-3] if len(dims["input"]) > 2 else None
    return rank_below(dims, "input", 3) or not_multiple(
        "the number of channels", channels, "upscale_factor squared", factor * factor
    )


PIXEL_SHUFFLE = Composite(
    name="pixel_shuffle",
    inputs=(Input("input", aliases=("x", "hidden_states", "inputs")),),
    outputs=("output",),
    output_dims=("?",),
    attributes=(Attribute("upscale_factor", "int", 1),),
    reference=pixel_shuffle,
    formula="[..., C r^2, H, W] as [..., C, H r, W r], r = upscale_factor",
    variant_axes=(("any_rank",),),
    check=_check,
    aten=("aten.pixel_shuffle.default",),
)
