"""Pixel shuffle: moves elements from channels to spatial positions."""

from __future__ import annotations

import torch

from coreai_onnx.composites.checks import Attributes, Dims, not_multiple, rank_below
from coreai_onnx.composites.declaration import Attribute, Composite, Input


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
        return f"upscale_factor is {factor}, at least 1 is needed"
    channels = dims["input"][-3] if len(dims["input"]) > 2 else None
    return rank_below(dims, "input", 3) or not_multiple(
        "the number of channels", channels, "upscale_factor squared", factor * factor
    )


COMPOSITE = Composite(
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
