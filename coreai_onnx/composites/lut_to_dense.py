"""Palettized weights: indices into tables of values or of vectors, one table for each block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from coreai_onnx.composites.blocks import check_blocks, check_stream, read_stream, tiled
from coreai_onnx.composites.checks import Attributes, Dims, rank_below
from coreai_onnx.composites.declaration import Attribute, Composite, Input


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
            stream, see :func:`coreai_onnx.composites.blocks.streamed`. For 8 bits, this is one
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
    wide = torch.float64 if lut.dtype == torch.float64 else torch.float32
    return (dense.to(wide) * tiled(scale.to(wide), dense.shape)).to(lut.dtype)


def dense_shape(shape: Sequence[int], vector: int, axis: int) -> tuple[int, ...]:
    """Return the shape of the weight that indices of a shape select."""
    place = axis % len(shape)
    return tuple(d * vector if i == place else d for i, d in enumerate(shape))


def check_lut(lut: Sequence[int | None], shape: Sequence[int], axis: int) -> str:
    """Return what is wrong with the shape of a table, or with the axis of its vectors."""
    entries, vector = lut[-2:]
    if entries is not None and (entries < 1 or entries & (entries - 1)):
        return f"lut has {entries} entries, not a power of two"
    if vector == 0:
        return "lut has vectors without elements"
    if not -len(shape) <= axis < len(shape):
        return f"axis {axis} is out of range for a weight of rank {len(shape)}"
    return check_blocks(lut[:-2], shape, "lut")


def _check(dims: Dims, attributes: Attributes) -> str:
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


COMPOSITE = Composite(
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
    check=_check,
    canonical=_canonical,
)
