"""Products and lookups with few-bit weights: packed codes with a scale for each group of inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from coreai_onnx.composites.checks import Attributes, Dims, Tensors, compute_dtype, rank_below
from coreai_onnx.composites.declaration import Attribute, Composite, Input
from coreai_onnx.composites.products import take
from coreai_onnx.model.weight_formats import E2M1, PARTS, PRODUCT_BITS, SCALE_BITS

SMALLEST = 1e-30
"""The smallest magnitude of a group of activations; a smaller one is rounded with its scale."""
LARGEST_STEP = 127
"""The largest magnitude of an activation that is rounded to 8 bits."""
_ACTIVATION_BITS = (0, 8)
_BYTE = 8
# Bytes of codes that the reference unpacks at once, to 64 bytes each: for a vocabulary of 262,144
# tokens of 640 numbers it took 6 GiB.
_LARGEST_CHUNK = 1 << 22


def linear_nbits(
    input: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None = None,
    palette: torch.Tensor | None = None,
    minimums: torch.Tensor | None = None,
    scale_codes: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
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
    at least 1e-30: ``round_half_to_even(x * (127 / largest)) * (largest / 127)``. A kernel may then
    multiply integers, whose sum is exact, and scale it afterwards.

    Args:
        input: ``[..., K]``, floating.
        codes: uint8, ``[N, K / group_size, group_size * bits / 8]``: the codes of each group as a
            little-endian bit stream, see :func:`coreai_onnx.model.packed_codes.pack_codes`. For 8,
            4 and 2 bits, this is the layout of onnxruntime's ``MatMulNBits``.
        scales: ``[N, K / group_size]``, of any floating dtype; ``[N, blocks]`` with
            ``scale_codes``.
        zero_points: ``[N, K / group_size]``, uint8 (one per byte) or floating; ``2 ** (bits - 1)``
            if absent, 0 with ``minimums``. Excludes ``scale_codes``.
        palette: ``[2 ** bits]``, of any floating dtype: the values of the codes. Excludes
            ``zero_points``.
        minimums: The shape of ``scales``, of any floating dtype. Excludes ``zero_points`` and
            ``palette``.
        scale_codes: uint8, ``[N, blocks, bytes]``: the codes of the groups of a block as a
            little-endian bit stream.
        bias: ``[N]``, in the dtype of ``input``.
        bits: Size of a code: 8, 6, 5, 4, 3 or 2.
        group_size: Number of neighbors in a row with one scale; divides ``K``, and
            ``group_size * bits`` is a multiple of 8.
        activation_bits: 0 to use ``input`` as it is, 8 to round it.
        scale_bits: Size of a code of a scale: 8, 6 or 4; 0 without ``scale_codes``.

    Returns:
        ``[..., N]`` in the dtype of ``input``.
    """
    wide = compute_dtype(input)
    x = input.to(wide)
    if activation_bits:
        x = rounded(x.unflatten(-1, (-1, group_size))).flatten(-2)
    parts = (codes, scales, zero_points, palette, minimums, scale_codes)
    step = max(1, _LARGEST_CHUNK // max(1, codes[:1].numel()))
    products = [
        torch.matmul(x, dequantized(rows, bits, scale_bits, wide).flatten(-2).mT)
        for rows in _chunks(parts, step)
    ]
    product = products[0] if len(products) == 1 else torch.cat(products, -1)
    return (product if bias is None else product + bias.to(wide)).to(input.dtype)


def _chunks(parts: Sequence[torch.Tensor | None], rows: int) -> Iterator[list[torch.Tensor | None]]:
    """Yield the parts of consecutive rows; at once if their number is not known."""
    assert parts[0] is not None
    count = parts[0].shape[0]
    if not isinstance(count, int) or count <= rows:
        yield list(parts)
        return
    for first in range(0, count, rows):
        yield [
            part[first : first + rows] if part is not None and declared.by_row else part
            for declared, part in zip(PARTS, parts, strict=True)
        ]


def dequantized(
    parts: Sequence[torch.Tensor | None], bits: int, scale_bits: int, wide: torch.dtype
) -> torch.Tensor:
    """Return the values of packed codes in groups, ``[..., groups, group_size]``, in ``wide``.

    Args:
        parts: The parts of the weight in the order of `PARTS`.
        bits: Size of a code.
        scale_bits: Size of a code of a scale; 0 for scales of one level.
        wide: The dtype of the result.
    """
    codes, scales, zero_points, palette, minimums, scale_codes = parts
    assert codes is not None
    assert scales is not None
    steps, scales = unpacked(codes, bits), scales.to(wide)
    minimums = None if minimums is None else minimums.to(wide)
    if scale_codes is not None:
        factors = unpacked(scale_codes, scale_bits).to(wide)
        if minimums is None:
            factors = factors - (1 << (scale_bits - 1))
        else:
            factors, of_minimums = factors.chunk(2, -1)
            minimums = (minimums.unsqueeze(-1) * of_minimums).flatten(-2)
        scales = (scales.unsqueeze(-1) * factors).flatten(-2)
    if minimums is not None:
        return steps.to(wide) * scales.unsqueeze(-1) - minimums.unsqueeze(-1)
    if palette is not None:
        values = palette.to(wide)[steps.long()]
    elif zero_points is None:
        values = steps.to(wide) - (1 << (bits - 1))
    else:
        values = steps.to(wide) - zero_points.to(wide).unsqueeze(-1)
    return values * scales.unsqueeze(-1)


def unpacked(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the codes in the last axis of bytes, ``[..., bytes * 8 / bits]``, as int32."""
    if _BYTE % bits == 0:
        shifts = torch.arange(0, _BYTE, bits, device=codes.device, dtype=torch.uint8)
        steps = codes.unsqueeze(-1) >> shifts & ((1 << bits) - 1)
        return steps.flatten(-2).to(torch.int32)
    places = torch.arange(_BYTE, device=codes.device)
    # Bit by bit, because codes of 3 bits cross the limits of bytes.
    stream = (codes.to(torch.int32).unsqueeze(-1) >> places) & 1
    by_code = stream.flatten(-2).unflatten(-1, (-1, bits))
    return torch.sum(by_code << places[:bits], -1, dtype=torch.int32)


def numbers_of(dtype: str) -> torch.Tensor:
    """Return the numbers of a narrow floating-point dtype in the order of their codes, float32."""
    if dtype == E2M1:  # torch converts none of them (OCP Microscaling Formats 1.0, table 5)
        positive = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
        return torch.cat([positive, -positive])
    return torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype)).float()


def rounded(groups: torch.Tensor) -> torch.Tensor:
    """Return groups of activations, in the last axis, rounded to 255 steps."""
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=SMALLEST)
    # torch computes a number divided by a tensor as a product with the reciprocal, rounded twice.
    inverse = torch.full_like(largest, LARGEST_STEP) / largest
    return torch.round(groups * inverse) * (largest / LARGEST_STEP)


def _check_linear(dims: Dims, attributes: Attributes) -> str:
    return check_weight(dims, attributes) or check_columns(dims, attributes, "input", 1)


def check_weight(dims: Dims, attributes: Attributes, rank: int = 3) -> str:
    """Return a message if attributes, codes (of this rank) or palette are invalid."""
    if "zero_points" in dims and "palette" in dims:
        return "zero_points and palette exclude each other"
    if "minimums" in dims and ("zero_points" in dims or "palette" in dims):
        return "minimums exclude zero_points and palette"
    bits = attributes["bits"]
    if bits in PRODUCT_BITS and dims.get("palette", (None,))[0] not in (None, 1 << bits):
        return f"palette has {dims['palette'][0]} values, {bits}-bit codes need {1 << bits}"
    return (
        rank_below(dims, "codes", rank)
        or _check_packing(dims["codes"][-1], attributes)
        or _check_scales(dims, attributes)
    )


def _check_scales(dims: Dims, attributes: Attributes) -> str:
    """Return a message if scales, minimums or their codes do not fit the codes."""
    bits, groups, blocks = attributes["scale_bits"], dims["codes"][-2], dims["scales"][-1]
    if ("scale_codes" in dims) != (bits != 0):
        return f"scale_bits is {bits} {'without' if bits else 'with'} scale_codes"
    if bits == 0:
        if None in (groups, blocks) or groups == blocks:
            return ""
        return f"scales has shape {list(dims['scales'])}, codes have {groups} groups"
    if bits not in SCALE_BITS:
        return f"scale_bits must be one of {SCALE_BITS}, got {bits}"
    if "zero_points" in dims:
        return "zero_points and scale_codes exclude each other"
    size = dims["scale_codes"][-1]
    if groups is None or blocks is None or size is None:
        return ""
    needed = groups * bits * (2 if "minimums" in dims else 1)
    if blocks * size * _BYTE == needed and (blocks == 0 or groups % blocks == 0):
        return ""
    return f"scale_codes have {blocks} blocks of {size} bytes, {groups} groups need {needed} bits"


def check_columns(dims: Dims, attributes: Attributes, name: str, least_rank: int) -> str:
    """Return a message if the shape of activations does not match the codes."""
    wrong = rank_below(dims, name, least_rank)
    if wrong:
        return wrong
    columns, groups, size = dims[name][-1], dims["codes"][-2], attributes["group_size"]
    if None in (groups, columns) or groups * size == columns:
        return ""
    return f"{name} has {columns} columns, codes have {groups} groups of {size}"


def _check_packing(size: int | None, attributes: Attributes) -> str:
    """Return a message if attributes, or the number of bytes of a group, are invalid."""
    bits, group, rounding = (
        attributes.get(n, 0) for n in ("bits", "group_size", "activation_bits")
    )
    if bits not in PRODUCT_BITS:
        return f"bits must be one of {PRODUCT_BITS}, got {bits}"
    if rounding not in _ACTIVATION_BITS:
        return f"activation_bits must be one of {_ACTIVATION_BITS}, got {rounding}"
    if group < 1 or group * bits % _BYTE:
        return f"group_size is {group}: {bits}-bit codes of a group do not fill whole bytes"
    needed = group * bits // _BYTE
    if size in (None, needed):
        return ""
    return f"codes have {size} bytes per group, {group} codes of {bits} bits need {needed}"


def _parts(rows: str, *, optional: bool | None = None) -> tuple[Input, ...]:
    """Return the inputs for the parts of a weight whose rows have these dims; None: all parts."""
    return tuple(
        Input(
            part.name,
            part.optional,
            part.dtype,
            f"{rows} {part.dims}" if part.by_row else part.dims,
        )
        for part in PARTS
        if optional in (None, part.optional)
    )


_BITS_WORDS = tuple(f"bits{bits}" for bits in PRODUCT_BITS if bits != 4)
_PARTS_WORDS = (
    ("zero_points", "palette", "minimums"),
    tuple(f"scales{bits}" for bits in SCALE_BITS),
)

LINEAR_NBITS = Composite(
    name="linear_nbits",
    inputs=(
        Input("input", aliases=("x", "hidden_states")),
        *_parts("N"),
        Input("bias", optional=True, dims="N"),
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
    variant_axes=(_BITS_WORDS, ("rounded",), *_PARTS_WORDS, ("bias",)),
    check=_check_linear,
)


def _admissible(inputs: Tensors) -> Tensors:
    """Return inputs with bytes as codes, indices in range, and one of zero points and palette."""
    valid = dict(inputs)
    valid["codes"] = valid["codes"].to(torch.uint8)
    valid["indices"] = valid["indices"] % max(inputs["codes"].shape[0], 1)
    if "scale_codes" in valid:
        valid["scale_codes"] = valid["scale_codes"].to(torch.uint8)
    if "palette" in valid or "minimums" in valid or "scale_codes" in valid:
        valid.pop("zero_points", None)
    if "minimums" in valid:
        valid.pop("palette", None)
    return valid


def gather_mm_nbits(
    lhs: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    indices: torch.Tensor,
    zero_points: torch.Tensor | None = None,
    palette: torch.Tensor | None = None,
    minimums: torch.Tensor | None = None,
    scale_codes: torch.Tensor | None = None,
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
        bits: Size of a code: 8, 6, 5, 4, 3 or 2.
        group_size: Number of neighbors in a row of a matrix with one scale; divides ``K``, and
            ``group_size * bits`` is a multiple of 8.
        activation_bits: 0 to use ``lhs`` as it is, 8 to round each group of a row to 8 bits, as in
            ``linear_nbits``.
        scale_bits: Size of a code of a scale: 8, 6 or 4; 0 without ``scale_codes``.

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
    weight = dequantized([*parts[:3], palette, *parts[3:]], bits, scale_bits, wide).flatten(-2)
    x = lhs.to(wide)
    if activation_bits:
        x = rounded(x.unflatten(-1, (-1, group_size))).flatten(-2)
    return torch.matmul(x, weight.transpose(-2, -1)).to(lhs.dtype)


def _check_gathered(dims: Dims, attributes: Attributes) -> str:
    return check_weight(dims, attributes, rank=4) or check_columns(dims, attributes, "lhs", 2)


GATHER_MM_NBITS = Composite(
    name="gather_mm_nbits",
    inputs=(
        Input("lhs", aliases=("x", "input", "hidden_states")),
        *_parts("E N", optional=False),
        Input("indices", dtype="index", aliases=("rhs_indices", "expert_ids")),
        *_parts("E N", optional=True),
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
    variant_axes=(_BITS_WORDS, ("rounded",), *_PARTS_WORDS),
    check=_check_gathered,
    admissible=_admissible,
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
        bits: Size of a code: 8, 6, 5, 4, 3 or 2.
        group_size: Number of neighbors in a row with one scale; ``group_size * bits`` is a multiple
            of 8.
        scale_bits: Size of a code of a scale: 8, 6 or 4; 0 without ``scale_codes``.

    Returns:
        The shape of ``indices``, then ``K``, in the dtype of ``scales``.
    """
    del group_size  # the codes have it
    wide = compute_dtype(scales)
    parts = [
        None if part is None else _rows(part, indices)
        for part in (codes, scales, zero_points, minimums, scale_codes)
    ]
    values = dequantized([*parts[:3], palette, *parts[3:]], bits, scale_bits, wide)
    return values.flatten(-2).to(scales.dtype)


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
        *_parts("N", optional=True),
    ),
    outputs=("output",),
    output_dims=("?",),
    attributes=(
        Attribute("bits", "int", 4, structural=True),
        Attribute("group_size", "int", 32),
        Attribute("scale_bits", "int", 0, structural=True),
    ),
    reference=embedding_nbits,
    formula="((codes - zero_points) * scales)[indices], codes packed in groups",
    variant_axes=(_BITS_WORDS, *_PARTS_WORDS),
    check=check_weight,
    admissible=_admissible,
)
