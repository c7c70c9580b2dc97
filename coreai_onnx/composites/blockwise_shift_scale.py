"""Quantized weights with a scale, and a zero point or minimum, for each block of any axes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.composites.blocks import check_blocks, check_stream, read_stream, tiled
from coreai_onnx.composites.checks import Attributes, Dims
from coreai_onnx.composites.declaration import Attribute, Composite, Input


def blockwise_shift_scale(
    scale: torch.Tensor,
    codes: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    minval: torch.Tensor | None = None,
    *,
    bits: int = 8,
    shape: Sequence[int] = (),
    minimum: int = 0,
) -> torch.Tensor:
    """Return a weight that is dequantized in blocks.

    With ``x = code + minimum``, the result is ``x * scale``, ``(x - zero_point) * scale``, or
    ``(x - minimum) * scale + minval``. It is computed in float32 (float64 for a ``scale`` of
    float64) and rounded at the end.

    Args:
        scale: ``[blocks of axis 0, ..., blocks of axis R - 1]``, floating; the blocks divide
            ``shape``.
        codes: uint8: the integers of the weight less ``minimum``, in C order, as a little-endian
            bit stream, see :func:`coreai_onnx.composites.blocks.streamed`. For 8 bits, this is
            one code per byte.
        zero_point: The shape of ``scale``, an integer or floating dtype. Excludes ``minval``.
        minval: The shape and dtype of ``scale``: the value of the least integer.
        bits: Size of a code: 8, 6, 4, 3, 2 or 1.
        shape: Shape of the weight, of rank R, at least 1.
        minimum: The least integer: 0, or ``-2 ** (bits - 1)`` for signed ones.

    Returns:
        ``shape``, in the dtype of ``scale``.
    """
    wide = torch.float64 if scale.dtype == torch.float64 else torch.float32
    steps = read_stream(codes, bits, shape).to(wide)
    factors = tiled(scale.to(wide), shape)
    if minval is not None:
        return (steps * factors + tiled(minval.to(wide), shape)).to(scale.dtype)
    steps = steps + minimum
    if zero_point is not None:
        steps = steps - tiled(zero_point.to(wide), shape)
    return (steps * factors).to(scale.dtype)


def _check(dims: Dims, attributes: Attributes) -> str:
    if "zero_point" in dims and "minval" in dims:
        return "zero_point and minval exclude each other"
    wrong = check_stream(dims, attributes, "codes")
    wrong = wrong or check_blocks(dims["scale"], attributes["shape"], "scale")
    for name in ("zero_point", "minval"):
        if not wrong and name in dims and list(dims[name]) != list(dims["scale"]):
            wrong = f"{name} has shape {list(dims[name])}, scale {list(dims['scale'])}"
    return wrong


COMPOSITE = Composite(
    name="blockwise_shift_scale",
    inputs=(
        Input("scale"),
        Input("codes", dtype="uint8"),
        Input("zero_point", optional=True, dtype="any"),
        Input("minval", optional=True),
    ),
    outputs=("output",),
    output_dims=("?",),
    attributes=(
        Attribute("bits", "int", 8, structural=True),
        Attribute("shape", "ints", ()),
        Attribute("minimum", "int", 0),
    ),
    reference=blockwise_shift_scale,
    formula="(codes + minimum - zero_point) * scale, or codes * scale + minval",
    variant_axes=(
        ("bits6", "bits4", "bits3", "bits2", "bits1"),
        ("zero_point", "minval"),
    ),
    check=_check,
)
