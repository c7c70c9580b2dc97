"""Products and lookups with few-bit weights: packed codes with a scale for each group of inputs."""

from __future__ import annotations

import torch

from coreai_onnx.composites.checks import Attributes, Dims, compute_dtype
from coreai_onnx.composites.declaration import Attribute, Composite, Input
from coreai_onnx.composites.few_bit_weights import (
    admissible,
    check_columns,
    check_weight,
    chunks,
    dequantized,
    inputs_of,
    rounded,
)
from coreai_onnx.composites.products import take
from coreai_onnx.model.weight_formats import BEFORE_BIAS, NAMES, OPTIONAL, PRODUCT_BITS, SCALE_BITS


def linear_nbits(
    input: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None = None,
    palette: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    minimums: torch.Tensor | None = None,
    scale_codes: torch.Tensor | None = None,
    table: torch.Tensor | None = None,
    layout: torch.Tensor | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
    activation_bits: int = 0,
    scale_bits: int = 0,
) -> torch.Tensor:
    """Return ``input @ weight.T + bias`` with a weight of few bits.

    The weight ``[N, K]`` is ``(code - zero_point) * scale``, ``palette[code] * scale``, or
    ``code * scale - minimum``, with a scale, a zero point and a minimum for each group of
    ``group_size`` neighbors in a row. Everything is computed in float32 (float64 for an ``input``
    of float64) and rounded to the dtype of ``input`` at the end.

    With ``scale_codes``, scales have two levels, as in the K-quants of GGUF: a scale and a minimum
    belong to a block of consecutive groups, and each group has a code of ``scale_bits`` bits by
    which they are multiplied. With ``minimums``, codes of scales are followed by codes of minimums,
    and both count from 0; otherwise ``2 ** (scale_bits - 1)`` is subtracted from a code first.

    With ``activation_bits`` of 8, each group of a row of ``input`` is first rounded to the nearest
    of 255 multiples of ``largest / 127``, where ``largest`` is the largest magnitude of the group,
    at least 1e-30: ``round_half_to_even(x * (127 / largest)) * (largest / 127)``.

    Args:
        input: ``[..., K]``, floating.
        codes: uint8, ``[N, K / group_size, group_size * bits / 8]``: the codes of each group as a
            little-endian bit stream, see :func:`coreai_onnx.model.packed_codes.pack_codes`.
        scales: ``[N, K / group_size]``, of any floating dtype; ``[N, blocks]`` with
            ``scale_codes``.
        zero_points: ``[N, K / group_size]``, uint8 (one per byte) or floating; ``2 ** (bits - 1)``
            if absent, 0 with ``minimums``. Excludes ``scale_codes``.
        palette: ``[2 ** bits]``, of any floating dtype: the values of the codes. Excludes
            ``zero_points``.
        bias: ``[N]``, in the dtype of ``input``.
        minimums: The shape of ``scales``, of any floating dtype. Excludes ``zero_points`` and
            ``palette``.
        scale_codes: uint8, ``[N, blocks, bytes]``: the codes of the groups of a block as a
            little-endian bit stream.
        table: uint8, ``[rows, width]``: codes that blocks of 256 values select, with ``palette``.
        layout: int32: numbers of blocks, see :func:`.few_bit_weights.looked_up`.
        bits: Size of a code: 8, 6, 5, 4, 3 or 2.
        group_size: Number of neighbors in a row with one scale; divides ``K``, and
            ``group_size * bits`` is a multiple of 8.
        activation_bits: 0 to use ``input`` as it is, 8 to round it.
        scale_bits: Size of a code of a scale: 8 or 6; 6 with ``palette``, 6 or 4 with
            ``minimums``; 0 without ``scale_codes``.

    Returns:
        ``[..., N]`` in the dtype of ``input``.
    """
    wide = compute_dtype(input)
    x = _activations(input, wide, activation_bits, group_size)
    parts = (codes, scales, zero_points, palette, minimums, scale_codes, table, layout)
    products = [
        torch.matmul(x, dequantized(rows, bits, scale_bits, wide).flatten(-2).mT)
        for rows in chunks(parts)
    ]
    product = products[0] if len(products) == 1 else torch.cat(products, -1)
    return (product if bias is None else product + bias.to(wide)).to(input.dtype)


def _activations(x: torch.Tensor, wide: torch.dtype, bits: int, group_size: int) -> torch.Tensor:
    x = x.to(wide)
    return rounded(x.unflatten(-1, (-1, group_size))).flatten(-2) if bits else x


def _check_linear(dims: Dims, attributes: Attributes) -> str:
    return check_weight(dims, attributes) or check_columns(dims, attributes, "input", 1)


_BITS_WORDS = tuple(f"bits{bits}" for bits in PRODUCT_BITS if bits != 4)
_PARTS_WORDS = (
    *("zero_points", "palette", "minimums", "palette_table"),
    *(f"{part}_scales{n}".lstrip("_") for part, sizes in SCALE_BITS.items() for n in sizes),
)

LINEAR_NBITS = Composite(
    name="linear_nbits",
    inputs=(
        Input("input", aliases=("x", "hidden_states")),
        *inputs_of("N", NAMES[:BEFORE_BIAS]),
        Input("bias", optional=True, dims="N"),
        *inputs_of("N", NAMES[BEFORE_BIAS:]),
    ),
    outputs=("output",),
    output_dims=("* N",),
    attributes=(
        Attribute("bits", "int", 4, structural=True),
        Attribute("group_size", "int", 32),
        Attribute("activation_bits", "int", 0, structural=True),
        Attribute("scale_bits", "int", 0, structural=True),
    ),
    reference=linear_nbits,
    kernel=True,
    formula="input @ ((codes - zero_points) * scales).T + bias, codes packed in groups",
    variant_axes=(_BITS_WORDS, ("rounded",), _PARTS_WORDS, ("bias",)),
    check=_check_linear,
)


def gather_mm_nbits(
    lhs: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    indices: torch.Tensor,
    zero_points: torch.Tensor | None = None,
    palette: torch.Tensor | None = None,
    minimums: torch.Tensor | None = None,
    scale_codes: torch.Tensor | None = None,
    table: torch.Tensor | None = None,
    layout: torch.Tensor | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
    activation_bits: int = 0,
    scale_bits: int = 0,
) -> torch.Tensor:
    """Return ``lhs @ take(weight, indices).mT`` with matrices of few bits, batch axes broadcast.

    This is :func:`coreai_onnx.composites.products.gather_mm` with ``transpose_rhs`` and a
    ``weight [experts, N, K]`` of few bits. Each expert has the layout and the values of
    :func:`coreai_onnx.composites.few_bits.linear_nbits`. Rows that share a matrix are
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
        minimums: The shape of ``scales``, as in ``linear_nbits``.
        scale_codes: uint8, ``[experts, N, blocks, bytes]``, as in ``linear_nbits``.
        table: As in ``linear_nbits``; ``codes`` are ``[experts, N, K / 256, bytes]``.
        layout: As in ``linear_nbits``.
        bits: Size of a code: 8, 6, 5, 4, 3 or 2.
        group_size: Number of neighbors in a row of a matrix with one scale; divides ``K``, and
            ``group_size * bits`` is a multiple of 8.
        activation_bits: 0 to use ``lhs`` as it is, 8 to round each group of a row to 8 bits, as in
            ``linear_nbits``.
        scale_bits: Size of a code of a scale, as in ``linear_nbits``.

    Returns:
        ``[..., M, N]`` in the dtype of ``lhs``; the leading axes are those of ``lhs`` and
        ``indices``, broadcast.
    """
    wide = compute_dtype(lhs)
    # One copy of a matrix per index, in the reference only; op, body and kernel share them.
    parts = [
        None if part is None else take(part, indices, 0)
        for part in (codes, scales, zero_points, minimums, scale_codes)
    ]
    weight = dequantized(
        [*parts[:3], palette, *parts[3:], table, layout], bits, scale_bits, wide
    ).flatten(-2)
    x = _activations(lhs, wide, activation_bits, group_size)
    return torch.matmul(x, weight.transpose(-2, -1)).to(lhs.dtype)


def _check_gathered(dims: Dims, attributes: Attributes) -> str:
    return check_weight(dims, attributes, rank=4) or check_columns(dims, attributes, "lhs", 2)


GATHER_MM_NBITS = Composite(
    name="gather_mm_nbits",
    inputs=(
        Input("lhs", aliases=("x", "input", "hidden_states")),
        *inputs_of("E N", ("codes", "scales")),
        Input("indices", dtype="index", aliases=("rhs_indices", "expert_ids")),
        *inputs_of("E N", OPTIONAL),
    ),
    outputs=("output",),
    output_dims=("?",),
    attributes=(
        Attribute("bits", "int", 4, structural=True),
        Attribute("group_size", "int", 32),
        Attribute("activation_bits", "int", 0, structural=True),
        Attribute("scale_bits", "int", 0, structural=True),
    ),
    reference=gather_mm_nbits,
    kernel=True,
    formula="lhs @ ((codes - zero_points) * scales)[indices].T, codes packed in groups",
    variant_axes=(_BITS_WORDS, ("rounded",), _PARTS_WORDS),
    check=_check_gathered,
    admissible=admissible,
    aten=("coreai.gather_mm_nbits.default",),
)


def embedding_nbits(
    scales: torch.Tensor,
    codes: torch.Tensor,
    indices: torch.Tensor,
    zero_points: torch.Tensor | None = None,
    palette: torch.Tensor | None = None,
    minimums: torch.Tensor | None = None,
    scale_codes: torch.Tensor | None = None,
    table: torch.Tensor | None = None,
    layout: torch.Tensor | None = None,
    like: torch.Tensor | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
    scale_bits: int = 0,
) -> torch.Tensor:
    """Return the rows of a table ``[N, K]`` that the indices select.

    The table has the layout and the values of the weight of
    :func:`coreai_onnx.composites.few_bits.linear_nbits`, so that a table that is also the
    weight of a product is stored once. Only the selected rows are unpacked, in float32 (float64 for
    ``scales`` of float64).

    Args:
        scales: ``[N, K / group_size]``, floating.
        codes: uint8, ``[N, K / group_size, group_size * bits / 8]``.
        indices: Integers in ``[-N, N)``, of any rank; negative ones count from the end.
        zero_points: ``[N, K / group_size]``, uint8 or floating; ``2 ** (bits - 1)`` if absent.
        palette: ``[2 ** bits]``, of any floating dtype. Excludes ``zero_points``.
        minimums: The shape of ``scales``, as in ``linear_nbits``.
        scale_codes: uint8, ``[N, blocks, bytes]``, as in ``linear_nbits``.
        table: As in ``linear_nbits``.
        layout: As in ``linear_nbits``.
        like: Of any shape and floating dtype, which is that of the result. With it, narrow scales
            of a table, as files have them, serve for rows that are not rounded.
        bits: Size of a code: 8, 6, 5, 4, 3 or 2.
        group_size: Number of neighbors in a row with one scale; ``group_size * bits`` is a multiple
            of 8.
        scale_bits: Size of a code of a scale, as in ``linear_nbits``.

    Returns:
        The shape of ``indices``, then ``K``, in the dtype of ``like``, or else of ``scales``.
    """
    del group_size  # the codes have it
    wide = compute_dtype(scales)
    parts = [
        None if part is None else _rows(part, indices)
        for part in (codes, scales, zero_points, minimums, scale_codes)
    ]
    values = dequantized([*parts[:3], palette, *parts[3:], table, layout], bits, scale_bits, wide)
    return values.flatten(-2).to((scales if like is None else like).dtype)


def _rows(table: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    # index_select does not accept negative indices.
    positive = torch.where(indices < 0, indices + table.shape[0], indices)
    taken = torch.index_select(table, 0, positive.reshape(-1).to(torch.int64))
    return taken.reshape(*indices.shape, *table.shape[1:])


EMBEDDING_NBITS = Composite(
    name="embedding_nbits",
    inputs=(
        Input("scales", dims="N S"),
        Input("codes", dtype="uint8", dims="N G B"),
        Input("indices", dtype="index"),
        *inputs_of("N", OPTIONAL),
        Input("like", optional=True, dtype="any"),
    ),
    outputs=("output",),
    output_dims=("?",),
    output_likes=("like",),
    attributes=(
        Attribute("bits", "int", 4, structural=True),
        Attribute("group_size", "int", 32),
        Attribute("scale_bits", "int", 0, structural=True),
    ),
    reference=embedding_nbits,
    formula="((codes - zero_points) * scales)[indices], codes packed in groups",
    variant_axes=(_BITS_WORDS, _PARTS_WORDS, ("like",)),
    check=check_weight,
    admissible=admissible,
)
