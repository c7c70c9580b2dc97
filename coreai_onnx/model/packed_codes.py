"""Codes of few bits in bytes: a little-endian bit stream, as in onnxruntime's MatMulNBits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

STREAM_BITS = (8, 6, 4, 3, 2, 1)
"""The sizes of a code of compressed weights, in bits."""
PACKED_BITS = (8, 6, 5, 4, 3, 2, 1)
"""The sizes of a code in a stream, in bits."""
_BYTE = 8


def pack_codes(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return codes as bytes: code ``i`` of a row is in the bits from ``i * bits`` on.

    Args:
        codes: Integers below ``2 ** bits``, ``[..., count]``; ``count * bits`` is a multiple of 8.
        bits: Size of a code: 8, 6, 5, 4, 3, 2 or 1.

    Returns:
        uint8, ``[..., count * bits / 8]``.

    Raises:
        ValueError: If a code is out of range, or a row does not fill whole bytes.
    """
    per, size = _unit(bits)
    if codes.size and not 0 <= codes.min() <= codes.max() < 1 << bits:
        low, high = codes.min(), codes.max()
        raise ValueError(f"codes of {bits} bits are 0 to {(1 << bits) - 1}, not {low} to {high}")
    units = _units(codes, per, f"{bits}-bit codes", bits)
    packed = np.zeros((*units.shape[:-1], size), np.uint8)
    for code, byte, shift in _overlaps(bits):
        one = units[..., code]
        moved = one << shift if shift >= 0 else one >> -shift
        packed[..., byte] |= (moved & 0xFF).astype(np.uint8, copy=False)
    return packed.reshape(*codes.shape[:-1], units.shape[-2] * size)


def pack_rows(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return codes as bytes, as :func:`pack_codes` does; zeros fill up the last byte of a row.

    Args:
        codes: Integers below ``2 ** bits``, ``[rows, count]``.
        bits: Size of a code: 8, 6, 5, 4, 3, 2 or 1.

    Returns:
        uint8, ``[rows, bytes]``.

    Raises:
        ValueError: If a code is out of range.
    """
    return pack_codes(np.pad(codes, ((0, 0), (0, -codes.shape[1] % _unit(bits)[0]))), bits)


def unpack_codes(packed: np.ndarray, bits: int) -> np.ndarray:
    """Return the codes that :func:`pack_codes` packed.

    Args:
        packed: uint8, ``[..., bytes]``.
        bits: Size of a code: 8, 6, 5, 4, 3, 2 or 1.

    Returns:
        uint8, ``[..., bytes * 8 / bits]``.

    Raises:
        ValueError: If a row does not consist of whole codes.
    """
    per, size = _unit(bits)
    units = _units(packed, size, f"bytes of {bits}-bit codes", bits)
    codes = np.zeros((*units.shape[:-1], per), np.uint8)
    for code, byte, shift in _overlaps(bits):
        one = units[..., byte]
        moved = one >> shift if shift >= 0 else one << -shift
        codes[..., code] |= (moved & ((1 << bits) - 1)).astype(np.uint8, copy=False)
    return codes.reshape(*packed.shape[:-1], units.shape[-2] * per)


def _unit(bits: int) -> tuple[int, int]:
    """Return the least number of codes that fill whole bytes, and the number of these bytes."""
    if bits not in PACKED_BITS:
        raise ValueError(f"a code has {bits} bits, not one of {PACKED_BITS}")
    whole = math.lcm(bits, _BYTE)
    return whole // bits, whole // _BYTE


def _overlaps(bits: int) -> Iterator[tuple[int, int, int]]:
    """Yield a code and a byte of a unit that share bits, and the code's first bit in the byte."""
    codes, size = _unit(bits)
    for code, byte in itertools.product(range(codes), range(size)):
        shift = code * bits - byte * _BYTE
        if -bits < shift < _BYTE:
            yield code, byte, shift


def _units(x: np.ndarray, size: int, what: str, bits: int) -> np.ndarray:
    """Return the last axis in units of a size, as integers that hold the bytes of a code."""
    if x.shape[-1] % size:
        raise ValueError(f"{x.shape[-1]} {what} in a row are not a multiple of {size}")
    # A code that crosses the limit of a byte is shifted out of 8 bits.
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size).astype(
        np.uint16 if _BYTE % bits else np.uint8, copy=False
    )
