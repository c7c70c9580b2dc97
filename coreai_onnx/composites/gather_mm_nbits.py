"""Gathered matrix products with few-bit weights, as in quantized mixtures of experts."""

from __future__ import annotations

import torch

from coreai_onnx.composites.checks import Attributes, Dims
from coreai_onnx.composites.declaration import Attribute, Composite, Input
from coreai_onnx.composites.embedding_nbits import admissible
from coreai_onnx.composites.gather_mm import take
from coreai_onnx.composites.linear_nbits import (
    check_columns,
    check_weight,
    dequantized,
    rounded,
)


def gather_mm_nbits(
    lhs: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    indices: torch.Tensor,
    zero_points: torch.Tensor | None = None,
    palette: torch.Tensor | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
    activation_bits: int = 0,
) -> torch.Tensor:
    """Return ``lhs @ take(weight, indices).mT`` with matrices of few bits, batch axes broadcast.

    This is :func:`coreai_onnx.composites.gather_mm.gather_mm` with ``transpose_rhs`` and a
    ``weight [experts, N, K]`` of few bits: ``(code - zero_point) * scale``, or
    ``palette[code] * scale``. Each expert has the layout of
    :func:`coreai_onnx.composites.linear_nbits.linear_nbits`. Rows that share a matrix are
    multiplied together, and a matrix that no index selects is not dequantized. Everything is
    computed in float32 (float64 for a ``lhs`` of float64).

    Args:
        lhs: ``[..., M, K]``, floating.
        codes: uint8, ``[experts, N, K / group_size, group_size * bits / 8]``.
        scales: ``[experts, N, K / group_size]``, of any floating dtype.
        indices: Integers in ``[0, experts)``, of any rank.
        zero_points: ``[experts, N, K / group_size]``, uint8 (one per byte) or floating;
            ``2 ** (bits - 1)`` if absent.
        palette: ``[2 ** bits]``, of any floating dtype. Excludes ``zero_points``.
        bits: Size of a code: 8, 4, 3 or 2.
        group_size: Number of neighbors in a row of a matrix with one scale; divides ``K``, and
            ``group_size * bits`` is a multiple of 8.
        activation_bits: 0 to use ``lhs`` as it is, 8 to round each group of a row to 8 bits, as in
            ``linear_nbits``.

    Returns:
        ``[..., M, N]`` in the dtype of ``lhs``; the leading axes are those of ``lhs`` and
        ``indices``, broadcast.
    """
    wide = torch.float64 if lhs.dtype == torch.float64 else torch.float32
    zeros = None if zero_points is None else take(zero_points, indices, 0)
    steps, factors = take(codes, indices, 0), take(scales, indices, 0)
    weight = dequantized(steps, factors, zeros, palette, bits, wide).flatten(-2)
    x = lhs.to(wide)
    if activation_bits:
        x = rounded(x.unflatten(-1, (-1, group_size))).flatten(-2)
    return torch.matmul(x, weight.transpose(-2, -1)).to(lhs.dtype)


def _check(dims: Dims, attributes: Attributes) -> str:
    return check_weight(dims, attributes, rank=4) or check_columns(dims, attributes, "lhs", 2)


COMPOSITE = Composite(
    name="gather_mm_nbits",
    inputs=(
        Input("lhs", aliases=("x", "input", "hidden_states")),
        Input("codes", dtype="uint8", dims="E N G B"),
        Input("scales", dtype="any", dims="E N G"),
        Input("indices", dtype="index", aliases=("rhs_indices", "expert_ids")),
        Input("zero_points", optional=True, dtype="any", dims="E N G"),
        Input("palette", optional=True, dtype="any", dims="P"),
    ),
    outputs=("output",),
    output_dims=("?",),
    attributes=(
        Attribute("bits", "int", 4, structural=True),
        Attribute("group_size", "int", 32),
        Attribute("activation_bits", "int", 0, structural=True),
    ),
    reference=gather_mm_nbits,
    kernel=True,
    formula="lhs @ ((codes - zero_points) * scales)[indices].T, codes packed in groups",
    variant_axes=(
        ("bits8", "bits3", "bits2"),
        ("rounded",),
        ("zero_points", "palette"),
    ),
    check=_check,
    admissible=admissible,
    aten=("coreai.gather_mm_nbits.default",),
)
