"""Types of GGUF whose codes select several values at once: IQ1, IQ2, IQ3, and TQ1.

A code of 8 to 11 bits selects 8 or 4 magnitudes from a table, and signs are stored apart. These
types become one code per value, which is 3 bits for the 6 values of IQ1 and IQ2, 4 for the 16 of
IQ3, and 2 for the 3 of TQ1: exact, but larger than in the file. ``gguf`` itself looks the values
up, in blocks whose scales are set to those of the smallest number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

_T = GGMLQuantizationType
_ONE = np.array([1], np.float16).view(np.uint8)
_MIDDLE = 32  # of the 6-bit codes of scales


class Codebook(NamedTuple):
    """A type with a table of values.

    Attributes:
        bits: Size of a code of one value.
        group_size: Number of neighbors with one scale.
        palette: The values by codes.
        levels: Returns the odd multiples of the smallest scale of a block, as ``(m - 1) / 2``
            uint8 ``[blocks, groups]``, and sets them to 0; None if a block has one scale.
        scale: The bytes of the scale in a block.
    """

    bits: int
    group_size: int
    palette: tuple[float, ...]
    levels: Callable[[np.ndarray], np.ndarray] | None
    scale: slice = np.s_[:2]

    @property
    def scale_bits(self) -> int:
        """Size of a code of a scale; 0 without them."""
        return 0 if self.levels is None else 6


def codes_of_codebook(
    kind: GGMLQuantizationType, blocks: np.ndarray
) -> tuple[np.ndarray, np.ndarray, None, np.ndarray | None]:
    """Return the codes, scales, no minimums, and codes of scales of blocks of a type."""
    book, unit = CODEBOOKS[kind], blocks.copy()
    levels = None if book.levels is None else book.levels(unit)
    if kind == _T.IQ1_M:
        scales = _spread_scale(unit)
    else:
        scales = np.ascontiguousarray(blocks[:, book.scale]).view(np.float16)
        unit[:, book.scale] = _ONE
    values = dequantize(unit, kind)
    order = np.argsort(book.palette, kind="stable")
    codes = order[np.searchsorted(np.asarray(book.palette)[order], values)].astype(np.uint8)
    # Scales are odd multiples, 1 to 31.
    return codes, scales, None, None if levels is None else 2 * levels + np.uint8(1 + _MIDDLE)


def _highest(first: int, words_from: slice) -> Callable[[np.ndarray], np.ndarray]:
    """Return a reader of the highest 4 bits of words of 32 bits, those from a byte on."""

    def levels(blocks: np.ndarray) -> np.ndarray:
        words = np.ascontiguousarray(blocks[:, first:]).view(np.uint32)
        result = (words[:, words_from] >> 28).astype(np.uint8)
        words[:, words_from] &= np.uint32((1 << 28) - 1)
        blocks[:, first:] = words.view(np.uint8)
        return result

    return levels


def _nibbles(first: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a reader of the 4-bit numbers from a byte to the end of a block."""

    def levels(blocks: np.ndarray) -> np.ndarray:
        numbers = np.stack([blocks[:, first:] & 15, blocks[:, first:] >> 4], axis=-1)
        blocks[:, first:] = 0
        return numbers.reshape(len(blocks), -1)

    return levels


def _iq1_s(blocks: np.ndarray) -> np.ndarray:
    words = np.ascontiguousarray(blocks[:, 34:]).view(np.uint16)
    result = (words >> 12 & 7).astype(np.uint8)
    blocks[:, 34:] = (words & np.uint16(0x8FFF)).view(np.uint8)
    return result


def _iq1_m(blocks: np.ndarray) -> np.ndarray:
    words = np.ascontiguousarray(blocks[:, 48:]).view(np.uint16)
    shifts = np.array([0, 3, 6, 9], np.uint16)
    result = (words[..., None] >> shifts & 7).astype(np.uint8)
    blocks[:, 48:] = (words & np.uint16(0xF000)).view(np.uint8)
    return result.reshape(len(blocks), -1)


def _spread_scale(blocks: np.ndarray) -> np.ndarray:
    """Return the scales of IQ1_M, in the highest 4 bits of four words, and set them to 1."""
    words = np.ascontiguousarray(blocks[:, 48:]).view(np.uint16)
    shifts = np.array([12, 8, 4, 0], np.uint16)
    scales = np.bitwise_or.reduce((words & np.uint16(0xF000)) >> shifts, axis=1)
    ones = (np.uint16(0x3C00) << shifts).astype(np.uint16) & np.uint16(0xF000)
    blocks[:, 48:] = np.broadcast_to(ones, words.shape).copy().view(np.uint8)
    result: np.ndarray = scales.astype(np.uint16).view(np.float16)[:, None]
    return result


def _signed(magnitudes: tuple[int, ...], divisor: int, bits: int) -> tuple[float, ...]:
    positive = tuple(m / divisor for m in magnitudes)
    return _filled((*positive, *(-m for m in positive)), bits)


def _filled(values: tuple[float, ...], bits: int) -> tuple[float, ...]:
    """Return a whole palette; no code selects the numbers at its end."""
    return values + (1000.0,) * ((1 << bits) - len(values))


_IQ1 = _filled((-1.125, -0.875, -0.125, 0.125, 0.875, 1.125), 3)
_IQ2 = _signed((8, 25, 43), 8, 3)
_IQ3_XXS = _signed((4, 12, 20, 28, 36, 44, 52, 62), 4, 4)
CODEBOOKS: Mapping[GGMLQuantizationType, Codebook] = {
    _T.IQ1_S: Codebook(3, 32, _IQ1, _iq1_s),
    _T.IQ1_M: Codebook(3, 16, _IQ1, _iq1_m),
    _T.IQ2_XXS: Codebook(3, 32, _IQ2, _highest(2, np.s_[1::2])),
    _T.IQ2_XS: Codebook(3, 16, _IQ2, _nibbles(66)),
    _T.IQ2_S: Codebook(3, 16, _IQ2, _nibbles(74)),
    _T.IQ3_XXS: Codebook(4, 32, _IQ3_XXS, _highest(66, np.s_[:])),
    _T.IQ3_S: Codebook(4, 32, _signed((1, 3, 5, 7, 9, 11, 13, 15), 1, 4), _nibbles(106)),
    _T.TQ1_0: Codebook(2, 256, _filled((-1.0, 0.0, 1.0), 2), None, np.s_[52:]),
}
"""The types, with values in multiples of their smallest scales."""
