"""Lookups of rows in tables with few-bit values: packed codes with a scale for each group."""

from __future__ import annotations

import torch

from coreai_onnx.composites.checks import Tensors
from coreai_onnx.composites.declaration import Attribute, Composite, Input
from coreai_onnx.composites.linear_nbits import check_weight, dequantized


def embedding_nbits(
    scales: torch.Tensor,
    codes: torch.Tensor,
    indices: torch.Tensor,
    zero_points: torch.Tensor | None = None,
    palette: torch.Tensor | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
) -> torch.Tensor:
    """Return the rows of a table ``[N, K]`` that the indices select.

    The table is ``(code - zero_point) * scale``, or ``palette[code] * scale``, in the layout of
    :func:`coreai_onnx.composites.linear_nbits.linear_nbits`, so that a table that is also the
    weight of a product is stored once. Only the selected rows are unpacked, in float32 (float64 for
    ``scales`` of float64).

    Args:
        scales: ``[N, K / group_size]``, floating.
        codes: uint8, ``[N, K / group_size, group_size * bits / 8]``.
        indices: Integers in ``[-N, N)``, of any rank; negative ones count from the end.
        zero_points: ``[N, K / group_size]``, uint8 or floating; ``2 ** (bits - 1)`` if absent.
        palette: ``[2 ** bits]``, of any floating dtype. Excludes ``zero_points``.
        bits: Size of a code: 8, 4, 3 or 2.
        group_size: Number of neighbors in a row with one scale; ``group_size * bits`` is a multiple
            of 8.

    Returns:
        The shape of ``indices``, then ``K``, in the dtype of ``scales``.
    """
    del group_size  # the codes have it
    wide = torch.float64 if scales.dtype == torch.float64 else torch.float32
    zeros = None if zero_points is None else _rows(zero_points, indices)
    steps, factors = _rows(codes, indices), _rows(scales, indices)
    values = dequantized(steps, factors, zeros, palette, bits, wide)
    return values.flatten(-2).to(scales.dtype)


def _rows(table: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    positive = torch.where(indices < 0, indices + table.shape[0], indices)
    taken = torch.index_select(table, 0, positive.reshape(-1).to(torch.int64))
    return taken.reshape(*indices.shape, *table.shape[1:])


def admissible(inputs: Tensors) -> Tensors:
    """Return inputs with bytes as codes, indices in range, and one of zero points and palette."""
    found = dict(inputs)
    found["codes"] = found["codes"].to(torch.uint8)
    found["indices"] = found["indices"] % max(inputs["codes"].shape[0], 1)
    if "palette" in found:
        found.pop("zero_points", None)
    return found


COMPOSITE = Composite(
    name="embedding_nbits",
    inputs=(
        Input("scales", dims="N G"),
        Input("codes", dtype="uint8", dims="N G B"),
        Input("indices", dtype="index"),
        Input("zero_points", optional=True, dtype="any", dims="N G"),
        Input("palette", optional=True, dtype="any", dims="P"),
    ),
    outputs=("output",),
    output_dims=("?",),
    attributes=(
        Attribute("bits", "int", 4, structural=True),
        Attribute("group_size", "int", 32),
    ),
    reference=embedding_nbits,
    formula="((codes - zero_points) * scales)[indices], codes packed in groups",
    variant_axes=(("bits8", "bits3", "bits2"), ("zero_points", "palette")),
    check=check_weight,
    admissible=admissible,
)
