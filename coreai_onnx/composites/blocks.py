"""Compressed weights: codes in one bit stream, and values that each belong to a block."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from coreai_onnx.composites.checks import Attributes, Dims
from coreai_onnx.composites.linear_nbits import unpacked
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
    """Return what is wrong with the size of a stream, or with the attributes that describe it."""
    bits, shape = attributes["bits"], attributes["shape"]
    if bits not in STREAM_BITS:
        return f"bits is {bits}, not one of {STREAM_BITS}"
    if not shape or min(shape) < 0:
        return f"shape is {shape}, not one or more sizes"
    if name not in dims or None in dims[name]:
        return ""
    size = math.prod(d for d in dims[name] if d is not None)
    unit = math.lcm(bits, _BYTE) // _BYTE
    if size % unit:
        return f"{name} has {size} bytes, {bits}-bit codes need a multiple of {unit}"
    found, needed = size * _BYTE // bits, math.prod(shape)
    return "" if found >= needed else f"{name} has {found} codes, shape {shape} needs {needed}"


def check_blocks(grid: Sequence[int | None], shape: Sequence[int], name: str) -> str:
    """Return what is wrong with a grid of blocks that cover a shape."""
    if len(grid) != len(shape):
        return f"{name} has {len(grid)} axes of blocks, the weight has {len(shape)} axes"
    for axis, (count, size) in enumerate(zip(grid, shape, strict=True)):
        if count is not None and (count < 1 or size % count):
            return f"{name} has {count} blocks along axis {axis}, which do not divide {size}"
    return ""
