"""Compressed weights: codes in one bit stream, and values that each belong to a block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from coreai_onnx.composites.checks import Attributes, Dims, compute_dtype, rank_below
from coreai_onnx.composites.declaration import Attribute, Composite, Input
from coreai_onnx.composites.few_bit_weights import unpacked
from coreai_onnx.model.packed_codes import STREAM_BITS, pack_codes

_BYTE = 8


def streamed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Return codes as one little-endian bit stream, in C order, filled up with zeros.

    Args:
        codes: Integers below ``2 ** bits``, of any shape.
        bits: Size of a code: 8, 6, 4, 3, 2 or 1.

    Returns:
        uint8, ``[bytes]``; the codes and up to seven zeros.

    Raises:
        ValueError: If a code is out of range.
    """
    flat = codes.detach().cpu().reshape(-1)
    # Eight codes fill whole bytes for every number of bits.
    filled = torch.nn.functional.pad(flat.to(torch.int64), (0, -flat.numel() % _BYTE))
    return torch.from_numpy(pack_codes(filled.numpy(), bits))


def read_stream(stream: torch.Tensor, bits: int, shape: Sequence[int]) -> torch.Tensor:
    """Return the codes of a stream in a shape, int64."""
    codes = unpacked(stream.reshape(-1), bits)[: math.prod(shape)]
    return codes.reshape(tuple(shape)).to(torch.int64)


def tiled(blocks: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return each value repeated over its block: ``[blocks...]`` to a multiple of these sizes."""
    for axis, size in enumerate(shape):
        blocks = blocks.repeat_interleave(size // blocks.shape[axis], axis)
    return blocks


def check_stream(dims: Dims, attributes: Attributes, name: str) -> str:
    """Return a message if the size of a stream, or an attribute that describes it, is invalid."""
    bits, shape = attributes["bits"], attributes["shape"]
    if bits not in STREAM_BITS:
        return f"bits must be one of {STREAM_BITS}, got {bits}"
    if not shape or min(shape) < 0:
        return f"shape is {shape}, not one or more sizes"
    if name not in dims or None in dims[name]:
        return ""
    size = math.prod(d for d in dims[name] if d is not None)
    # The body reads units of whole codes: three bytes for 3 and 6 bits.
    unit = math.lcm(bits, _BYTE) // _BYTE
    if size % unit:
        return f"{name} has {size} bytes, {bits}-bit codes need a multiple of {unit}"
    count, needed = size * _BYTE // bits, math.prod(shape)
    return "" if count >= needed else f"{name} has {count} codes, shape {shape} needs {needed}"


def check_blocks(grid: Sequence[int | None], shape: Sequence[int], name: str) -> str:
    """Return a message if blocks do not divide a shape."""
    if len(grid) != len(shape):
        return f"{name} has {len(grid)} axes of blocks, the weight has {len(shape)} axes"
    for axis, (count, size) in enumerate(zip(grid, shape, strict=True)):
        if count is not None and (count < 1 or size % count):
            return f"{name} has {count} blocks along axis {axis}, which do not divide {size}"
    return ""


def lut_to_dense(
    lut: torch.Tensor,
    indices: torch.Tensor,
    scale: torch.Tensor | None = None,
    *,
    bits: int = 8,
    shape: Sequence[int] = (),
    axis: int = 0,
) -> torch.Tensor:
    """Return the weight whose elements are looked up in tables.

    The tables divide the weight into equal blocks: the element at ``i`` along an axis belongs to
    block ``i // (size / blocks)`` of that axis. If the entries of a table are vectors, their
    elements are neighbors along ``axis`` of the weight, which then is longer by their size.

    Args:
        lut: ``[blocks of axis 0, ..., blocks of axis R - 1, entries, vector]``, floating; the
            blocks divide ``shape``, and ``entries`` is a power of two, at most ``2 ** bits``.
        indices: uint8: ``shape`` indices below ``entries``, in C order, as a little-endian bit
            stream, see :func:`streamed`. For 8 bits, this is one
            index per byte.
        scale: ``[blocks of axis 0, ..., blocks of axis R - 1]``: factors on blocks of the weight,
            in the dtype of ``lut``. The product is computed in float32 (float64 for float64).
        bits: Size of an index in the stream: 8, 6, 4, 3, 2 or 1.
        shape: Shape of the indices, of rank R, at least 1.
        axis: Axis of the weight along which the elements of a vector lie.

    Returns:
        ``shape`` with the size of ``axis`` multiplied by ``vector``, in the dtype of ``lut``.
    """
    grid, entries, place = lut.shape[:-2], lut.shape[-2], axis % len(shape)
    tables = torch.arange(math.prod(grid), device=lut.device).reshape(grid)
    rows = tiled(tables, shape) * entries + read_stream(indices, bits, shape)
    vectors = lut.flatten(0, -2)[rows]
    dense = vectors.movedim(-1, place + 1).flatten(place, place + 1)
    if scale is None:
        return dense
    wide = compute_dtype(lut)
    return (dense.to(wide) * tiled(scale.to(wide), dense.shape)).to(lut.dtype)


def dense_shape(shape: Sequence[int], vector: int, axis: int) -> tuple[int, ...]:
    """Return the shape of the weight that indices of a shape select."""
    place = axis % len(shape)
    return tuple(d * vector if i == place else d for i, d in enumerate(shape))


def check_lut(lut: Sequence[int | None], shape: Sequence[int], axis: int) -> str:
    """Return a message if the shape of a table, or the axis of its vectors, is invalid."""
    entries, vector = lut[-2:]
    if entries is not None and (entries < 1 or entries & (entries - 1)):
        return f"the entries of lut must be a power of two, got {entries}"
    if vector == 0:
        return "lut has vectors without elements"
    if not -len(shape) <= axis < len(shape):
        return f"axis {axis} is out of range for a weight of rank {len(shape)}"
    return check_blocks(lut[:-2], shape, "lut")


def _check_lookup(dims: Dims, attributes: Attributes) -> str:
    wrong = rank_below(dims, "lut", 3) or check_stream(dims, attributes, "indices")
    shape, axis = attributes["shape"], attributes["axis"]
    wrong = wrong or check_lut(dims["lut"], shape, axis)
    if wrong:
        return wrong
    entries, vector = dims["lut"][-2:]
    if entries is not None and entries > 1 << attributes["bits"]:
        bits = attributes["bits"]
        return f"lut has {entries} entries, {bits}-bit indices select from {1 << bits}"
    if "scale" not in dims or vector is None:
        return ""
    return check_blocks(dims["scale"], dense_shape(shape, vector, axis), "scale")


def _canonical(dims: Dims, attributes: Attributes) -> dict[str, Any]:
    del dims
    return {**attributes, "axis": attributes["axis"] % len(attributes["shape"])}


LUT_TO_DENSE = Composite(
    name="lut_to_dense",
    inputs=(
        Input("lut"),
        Input("indices", dtype="uint8"),
        Input("scale", optional=True),
    ),
    outputs=("output",),
    output_dims=("?",),
    attributes=(
        Attribute("bits", "int", 8, structural=True),
        Attribute("shape", "ints", ()),
        Attribute("axis", "int", 0),
    ),
    reference=lut_to_dense,
    formula="lut[block, indices] * scale, indices packed in one stream",
    variant_axes=(("bits6", "bits4", "bits3", "bits2", "bits1"), ("scale",)),
    check=_check_lookup,
    canonical=_canonical,
)


def sparse_to_dense(
    nonzero: torch.Tensor, mask: torch.Tensor, *, shape: Sequence[int] = ()
) -> torch.Tensor:
    """Return the weight that has the given values where bits are set, and zeros elsewhere.

    Args:
        nonzero: ``[count]``, floating: the values in C order, one for each bit that is set.
        mask: uint8: a bit for each element of ``shape``, in C order, as a little-endian bit stream,
            see :func:`streamed`.
        shape: Shape of the weight.

    Returns:
        ``shape``, in the dtype of ``nonzero``.
    """
    present = read_stream(mask, 1, shape)
    # position 0 is the zero of the elements that are absent
    positions = present.flatten().cumsum(0).reshape(present.shape) * present
    return torch.cat([nonzero.new_zeros(1), nonzero])[positions]


def _check_sparse(dims: Dims, attributes: Attributes) -> str:
    return check_stream(dims, {**attributes, "bits": 1}, "mask")


SPARSE_TO_DENSE = Composite(
    name="sparse_to_dense",
    inputs=(Input("nonzero", dims="C"), Input("mask", dtype="uint8")),
    outputs=("output",),
    output_dims=("?",),
    attributes=(Attribute("shape", "ints", ()),),
    reference=sparse_to_dense,
    formula="the next value of nonzero where a bit of mask is set, 0 elsewhere",
    check=_check_sparse,
)


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
            bit stream, see :func:`streamed`. For 8 bits, this is
            one code per byte.
        zero_point: The shape of ``scale``, an integer or floating dtype. Excludes ``minval``.
        minval: The shape and dtype of ``scale``: the value of the least integer.
        bits: Size of a code: 8, 6, 4, 3, 2 or 1.
        shape: Shape of the weight, of rank R, at least 1.
        minimum: The least integer: 0, or ``-2 ** (bits - 1)`` for signed ones.

    Returns:
        ``shape``, in the dtype of ``scale``.
    """
    wide = compute_dtype(scale)
    steps = read_stream(codes, bits, shape).to(wide)
    factors = tiled(scale.to(wide), shape)
    if minval is not None:
        # minval is the value of code 0, so that minimum cancels out.
        return (steps * factors + tiled(minval.to(wide), shape)).to(scale.dtype)
    steps = steps + minimum
    if zero_point is not None:
        steps = steps - tiled(zero_point.to(wide), shape)
    return (steps * factors).to(scale.dtype)


def _check_blockwise(dims: Dims, attributes: Attributes) -> str:
    if "zero_point" in dims and "minval" in dims:
        return "zero_point and minval exclude each other"
    wrong = check_stream(dims, attributes, "codes")
    wrong = wrong or check_blocks(dims["scale"], attributes["shape"], "scale")
    for name in ("zero_point", "minval"):
        if not wrong and name in dims and list(dims[name]) != list(dims["scale"]):
            wrong = f"{name} has shape {list(dims[name])}, scale {list(dims['scale'])}"
    return wrong


BLOCKWISE_SHIFT_SCALE = Composite(
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
    check=_check_blockwise,
)
