"""The weights of products and lookups with few bits: their values, their inputs, their checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from coreai_onnx.composites.checks import Attributes, Dims, Tensors, rank_below
from coreai_onnx.composites.declaration import Input
from coreai_onnx.model.weight_formats import BLOCK_SIZE, E2M1, PARTS, PRODUCT_BITS, SCALE_BITS

SMALLEST = 1e-30
"""The smallest magnitude of a group of activations; a smaller one is rounded with its scale."""
LARGEST_STEP = 127
"""The largest magnitude of an activation that is rounded to 8 bits."""
_ACTIVATION_BITS = (0, 8)
_BYTE = 8
# Bytes of codes that the reference unpacks at once, to 64 bytes each: for a vocabulary of 262,144
# tokens of 640 numbers it took 6 GiB.
_LARGEST_CHUNK = 1 << 22


def chunks(parts: Sequence[torch.Tensor | None]) -> Iterator[list[torch.Tensor | None]]:
    """Yield the parts of consecutive rows; at once if their number is not known."""
    assert parts[0] is not None
    count, rows = parts[0].shape[0], max(1, _LARGEST_CHUNK // max(1, parts[0][:1].numel()))
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
    codes, scales, zero_points, palette, minimums, scale_codes, table, layout = parts
    assert codes is not None
    assert scales is not None
    scales = scales.to(wide)
    if table is None or layout is None:
        steps = unpacked(codes, bits)
    else:
        steps, multiples = looked_up(codes, table, layout)
        scales = (scales.unsqueeze(-1) * multiples).flatten(-2)
    minimums = None if minimums is None else minimums.to(wide)
    if scale_codes is not None:
        factors = unpacked(scale_codes, scale_bits).to(wide)
        if minimums is None:
            # Without minimums, codes of scales are signed, with an offset: as GGUF's Q3_K has them.
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


def looked_up(
    blocks: torch.Tensor, table: torch.Tensor, layout: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes of blocks and the factors of their scales.

    Blocks of 256 values have numbers that select the codes of several values at once, as in IQ1,
    IQ2, IQ3 and TQ1 of GGUF. A block is a little-endian bit stream; a row of ``layout`` has
    ``first`` and, for each of some fields of bits, its place, its size and a factor, which give a
    number: ``first + sum(factor * field)``. The first numbers are factors of the scale of the
    block, one for each of its groups. Those after them select rows of ``table``, which are the
    codes of the block one after the other; as many numbers after those select rows of bits that
    are set in these codes.

    Args:
        blocks: uint8, ``[..., blocks, bytes]``: the codes of a weight, which has a scale for each
            block.
        table: uint8, ``[rows, width]``: codes below ``2 ** bits``; ``width`` divides 256, and so
            does the size of a group.
        layout: int32, ``[256 / group_size + 2 * 256 / width, 1 + 3 * fields]``. A field has 1 to 9
            bits; factors of scales are below ``2 ** 24``.

    Returns:
        Codes, uint8, ``[..., groups, group_size]``, and factors, ``[..., blocks, groups]``, int64.
    """
    place, size, factor = layout[:, 1:].long().unflatten(-1, (-1, 3)).unbind(-1)
    last = (place + size - 1) // _BYTE
    # Two bytes hold each field: none reaches into a third.
    words = blocks[..., place // _BYTE].long() | blocks[..., last].long() << _BYTE
    fields = words >> place % _BYTE & (1 << size) - 1
    numbers = layout[:, 0] + (fields * factor).sum(-1)
    count = BLOCK_SIZE // table.shape[1]
    groups = layout.shape[0] - 2 * count
    factors, rows, others = numbers.split([groups, count, count], -1)
    codes = (table[rows] | table[others]).flatten(-2)
    return codes.unflatten(-1, (groups, -1)).flatten(-3, -2), factors


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


def check_weight(dims: Dims, attributes: Attributes, rank: int = 3) -> str:
    """Return a message if attributes, codes (of this rank) or palette are invalid."""
    if "zero_points" in dims and "palette" in dims:
        return "zero_points and palette exclude each other"
    if "minimums" in dims and ("zero_points" in dims or "palette" in dims):
        return "minimums exclude zero_points and palette"
    if wrong := _check_table(dims, attributes):
        return wrong
    bits = attributes["bits"]
    if bits in PRODUCT_BITS and dims.get("palette", (None,))[0] not in (None, 1 << bits):
        return f"palette has {dims['palette'][0]} values, {bits}-bit codes need {1 << bits}"
    return (
        rank_below(dims, "codes", rank)
        or _check_packing(None if "table" in dims else dims["codes"][-1], attributes)
        or _check_scales(dims, attributes)
    )


def _check_table(dims: Dims, attributes: Attributes) -> str:
    """Return a message if a table, or the layout of blocks, is invalid."""
    if "table" not in dims and "layout" not in dims:
        return ""
    if not {"table", "layout", "palette"} <= set(dims) or "scale_codes" in dims:
        return "table and layout need each other and a palette, and exclude scale_codes"
    if wrong := rank_below(dims, "table", 2) or rank_below(dims, "layout", 2):
        return wrong
    group, width, (numbers, size) = attributes["group_size"], dims["table"][1], dims["layout"]
    if group < 1 or BLOCK_SIZE % group or (width is not None and (not width or BLOCK_SIZE % width)):
        return f"group_size is {group}, rows of table have {width} codes: must divide {BLOCK_SIZE}"
    if size is not None and (size < 4 or size % 3 != 1):
        return f"layout has rows of {size}, must be 1 and 3 for each field"
    needed = None if width is None else BLOCK_SIZE // group + 2 * (BLOCK_SIZE // width)
    if None in (numbers, needed) or numbers == needed:
        return ""
    return f"layout has {numbers} numbers, groups of {group} in rows of {width} need {needed}"


def _check_scales(dims: Dims, attributes: Attributes) -> str:
    """Return a message if scales, minimums or their codes do not fit the codes."""
    bits, groups, blocks = attributes["scale_bits"], dims["codes"][-2], dims["scales"][-1]
    if ("scale_codes" in dims) != (bits != 0):
        return f"scale_bits is {bits} {'without' if bits else 'with'} scale_codes"
    if bits == 0:
        if None in (groups, blocks) or groups == blocks:
            return ""
        return f"scales has shape {list(dims['scales'])}, codes have {groups} groups"
    if "zero_points" in dims:
        return "zero_points and scale_codes exclude each other"
    part = next((name for name in ("palette", "minimums") if name in dims), "")
    if bits not in SCALE_BITS[part]:
        beside = f" with {part}" if part else ""
        return f"scale_bits must be one of {SCALE_BITS[part]}{beside}, got {bits}"
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
    what = "groups"
    if "table" in dims:
        size, what = BLOCK_SIZE, "blocks"
    if None in (groups, columns) or groups * size == columns:
        return ""
    return f"{name} has {columns} columns, codes have {groups} {what} of {size}"


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


def inputs_of(rows: str, names: Sequence[str]) -> tuple[Input, ...]:
    """Return the inputs for these parts of a weight whose rows have these dims."""
    return tuple(
        Input(
            part.name,
            part.optional,
            part.dtype,
            f"{rows} {part.dims}" if part.by_row else part.dims,
        )
        for part in PARTS
        if part.name in names
    )


def admissible(inputs: Tensors) -> Tensors:
    """Return inputs with bytes as codes, indices in range, and one of zero points and palette."""
    valid = dict(inputs)
    valid["codes"] = valid["codes"].to(torch.uint8)
    valid["indices"] = valid["indices"] % max(inputs["codes"].shape[0], 1)
    if "scale_codes" in valid:
        valid["scale_codes"] = valid["scale_codes"].to(torch.uint8)
    valid.pop("table", None)  # random numbers describe no blocks
    valid.pop("layout", None)
    if "palette" in valid or "minimums" in valid or "scale_codes" in valid:
        valid.pop("zero_points", None)
    if "minimums" in valid:
        valid.pop("palette", None)
    return valid
