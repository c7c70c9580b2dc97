"""Types of GGUF whose codes select several values at once: IQ1, IQ2, IQ3, and TQ1.

A number of 8 to 11 bits selects 8 or 4 magnitudes from a table, and signs are stored apart. Weights
have the blocks as they are, the scales of blocks beside them, and one table and one layout for all
weights of a type.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedMatrix
from coreai_onnx.model.weight_formats import BLOCK_SIZE

_T = GGMLQuantizationType
_SPREAD = np.array([12, 8, 4, 0], np.uint16)
"""By how many bits the four parts of a scale of IQ1_M are moved in their words."""
_DIVISORS = {_T.IQ3_XXS: 4, _T.IQ3_S: 1}
"""Of magnitudes, so that scales are odd multiples; 8 for the others."""


class _Fields(NamedTuple):
    """Fields of equal size at regular places of a block.

    Attributes:
        bits: Size of a field.
        first: The bit at which the first one begins.
        axes: The number of steps and the size of a step in bits, of each axis, the last one moving
            fastest. A step of 0 repeats fields.
    """

    bits: int
    first: int
    axes: tuple[tuple[int, int], ...]

    def numbers(self, factor: int) -> np.ndarray:
        """Return the place, the size and a factor of each field, ``[fields, 3]``."""
        steps = [np.arange(count) * step for count, step in self.axes]
        places = self.first + functools.reduce(np.add.outer, steps).ravel()
        return np.stack([places, *np.broadcast_arrays(self.bits, factor, places)[:2]], axis=1)


class _Codebook(NamedTuple):
    """A type whose blocks have magnitudes and signs.

    Attributes:
        bits: Size of a code of one value.
        levels: The scale of a group is that of the block times twice this number plus 1.
        rows: The lowest bits of the rows of magnitudes, and the bits above them.
        signs: The rows of signs.
        halves: Of 8 neighbors, the signs of the first and the last four are in rows of their own,
            this far apart.
    """

    bits: int
    levels: _Fields
    rows: tuple[_Fields, ...]
    signs: _Fields
    halves: int = 0


def _bytes(count: int) -> _Fields:
    return _Fields(8, 0, ((count, 8),))


# Numbers in the order of ggml-common.h of llama.cpp, less the scale.
_BOOKS = {
    _T.IQ2_XXS: _Codebook(
        3, _Fields(4, 60, ((8, 64),)), (_Fields(8, 0, ((8, 64), (4, 8))),),
        _Fields(7, 32, ((8, 64), (4, 7))),
    ),
    _T.IQ2_XS: _Codebook(
        3, _Fields(4, 512, ((16, 4),)), (_Fields(9, 0, ((32, 16),)),), _Fields(7, 9, ((32, 16),)),
    ),
    _T.IQ3_XXS: _Codebook(
        4, _Fields(4, 540, ((8, 32),)), (_bytes(64),), _Fields(7, 512, ((8, 32), (4, 7), (2, 0))),
        halves=128,
    ),
    _T.IQ1_S: _Codebook(
        3, _Fields(3, 268, ((8, 16),)), (_bytes(32), _Fields(3, 256, ((8, 16), (4, 3)))),
        _Fields(1, 271, ((8, 16), (4, 0))),
    ),
    _T.IQ3_S: _Codebook(
        4, _Fields(4, 832, ((8, 4),)), (_bytes(64), _Fields(1, 512, ((64, 1),))),
        _Fields(4, 576, ((64, 4),)),
    ),
    _T.IQ2_S: _Codebook(
        3, _Fields(4, 576, ((16, 4),)), (_bytes(32), _Fields(2, 512, ((32, 2),))),
        _Fields(8, 256, ((32, 8),)),
    ),
    _T.IQ1_M: _Codebook(  # its scale is also in the highest 4 bits of the last four words
        3, _Fields(3, 384, ((4, 16), (4, 3))), (_bytes(32), _Fields(3, 256, ((32, 4),))),
        _Fields(1, 259, ((32, 4),)),
    ),
}  # fmt: skip
CODEBOOKS: Mapping[GGMLQuantizationType, slice] = {
    **dict.fromkeys(_BOOKS, np.s_[:2]),
    _T.IQ1_M: np.s_[:0],
    _T.TQ1_0: np.s_[52:],
}
"""The types, with the bytes of a block that are its scale alone."""


def block_matrix(data: np.ndarray, kind: GGMLQuantizationType, rows: int) -> PackedMatrix:
    """Return the weight in the blocks of a tensor, ``[rows, columns]``."""
    blocks = data.reshape(rows, -1, GGML_QUANT_SIZES[kind][1])
    if kind == _T.IQ1_M:
        words = np.ascontiguousarray(blocks[..., 48:]).view(np.uint16)
        scales = np.bitwise_or.reduce((words & np.uint16(0xF000)) >> _SPREAD, axis=-1)
        scales = scales.astype(np.uint16)[..., None]
    else:
        scales = np.ascontiguousarray(blocks[..., CODEBOOKS[kind]])
    palette, table, layout = _codebook(kind)
    return PackedMatrix(
        torch.from_numpy(np.delete(blocks, CODEBOOKS[kind], axis=-1)),
        torch.from_numpy(scales.view(np.float16)[..., 0]),
        _BOOKS[kind].bits if kind in _BOOKS else 2,
        palette=palette,
        table=table,
        layout=layout,
    )


def kind_of_blocks(matrix: PackedMatrix) -> GGMLQuantizationType | None:
    """Return the type whose blocks a weight has; None if it has other ones."""
    for kind in CODEBOOKS:
        parts = zip((matrix.palette, matrix.table, matrix.layout), _codebook(kind), strict=True)
        if all(one is not None and torch.equal(one, other) for one, other in parts):
            return kind
    return None


def block_bytes(matrix: PackedMatrix, kind: GGMLQuantizationType) -> np.ndarray:
    """Return the bytes of a weight in blocks as GGUF has them, ``[rows, bytes]``."""
    blocks, place = matrix.codes.numpy(), CODEBOOKS[kind]
    scales = matrix.scales.numpy().astype(np.float16)[..., None].view(np.uint8)
    first = place.indices(blocks.shape[-1] + 2)[0]
    between = scales[..., : len(range(*place.indices(first + 2)))]
    parts = (blocks[..., :first], between, blocks[..., first:])
    return np.concatenate(parts, axis=-1).reshape(len(blocks), -1)


@functools.cache
def _codebook(kind: GGMLQuantizationType) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the palette, the table and the layout of a type."""
    if kind == _T.TQ1_0:
        palette, table, layout = _digits()
    else:
        book, magnitudes = _BOOKS[kind], _magnitudes(kind)
        signs = _signs(kind).reshape(-1, magnitudes.shape[1]) << (book.bits - 1)
        palette, table = _values(kind), np.concatenate([magnitudes, signs])
        layout = _layout(book, len(magnitudes))
    return (
        torch.from_numpy(palette.astype(np.float16)),
        torch.from_numpy(table),
        torch.from_numpy(layout.astype(np.int32)),
    )


def _layout(book: _Codebook, first_sign: int) -> np.ndarray:
    """Return the numbers of a block, ``[numbers, 1 + 3 * fields]``."""
    levels, signs = book.levels.numbers(2), book.signs.numbers(1)
    rows = [fields.numbers(1 << 8 * i) for i, fields in enumerate(book.rows)]
    numbers = np.concatenate([levels, rows[0], signs])
    above = np.broadcast_to([0, 1, 0], numbers.shape).copy()
    if len(rows) > 1:
        above[len(levels) : -len(signs)] = rows[1]
    firsts = np.repeat([1, 0, first_sign], [len(levels), len(rows[0]), len(signs)])[:, None]
    if book.halves:
        firsts[-len(signs) + 1 :: 2] += book.halves
    return np.concatenate([firsts, numbers, above][: 1 + len(rows)], axis=1)


def _digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return palette, table and layout of TQ1_0: a byte has five digits to base 3."""
    powers = np.array([1, 3, 9, 27, 81], np.uint8)
    digits = (np.arange(256, dtype=np.uint8) * powers[:, None]).astype(np.uint16) * 3 >> 8
    table = np.append(digits, 0).astype(np.uint8)[:, None]
    # The digits of a byte are those of values that are 32, 16 or 4 places apart.
    units = ((0, 32, 5), (32, 16, 5), (48, 4, 4))
    places = np.concatenate([np.tile(np.arange(count) + at, n) for at, count, n in units])
    firsts = np.concatenate([np.repeat(np.arange(n), count) for _, count, n in units])
    rows = np.stack([256 * firsts, 8 * places, *np.broadcast_arrays(8, 1, places)[:2]], axis=1)
    others = np.broadcast_to([len(table) - 1, 0, 1, 0], (BLOCK_SIZE, 4))
    return np.array([-1, 0, 1, 0]), table, np.concatenate([[[1, 0, 1, 0]], rows, others])


def _magnitudes(kind: GGMLQuantizationType) -> np.ndarray:
    """Return the places of magnitudes among all of a type, uint8 ``[numbers, values]``."""
    of_type = getattr(quants, kind.name)
    of_type.init_grid()
    grid = of_type.grid.reshape(of_type.grid_shape)
    places: np.ndarray = np.searchsorted(of_type.grid_map, grid).astype(np.uint8)
    return places


def _signs(kind: GGMLQuantizationType) -> np.ndarray:
    """Return the signs that numbers select, 1 for a negative one; of IQ1, the signs of a shift."""
    if kind in (_T.IQ1_S, _T.IQ1_M):
        return np.repeat(np.array([0, 1], np.uint8), 8)
    numbers = np.arange(16 if kind == _T.IQ3_S else 256, dtype=np.uint8)
    if kind in (_T.IQ2_XXS, _T.IQ2_XS, _T.IQ3_XXS):
        numbers = np.frombuffer(quants.IQ2_XXS.ksigns, np.uint8)
    signs = np.unpackbits(numbers[:, None], axis=1, bitorder="little")
    if kind == _T.IQ3_S:
        return signs[:, :4]
    # The first four of each number, then the others.
    return np.concatenate([signs[:, :4], signs[:, 4:]]) if kind == _T.IQ3_XXS else signs


def _values(kind: GGMLQuantizationType) -> np.ndarray:
    """Return the values of codes, in which the highest bit is the sign."""
    half = 1 << _BOOKS[kind].bits - 1
    magnitudes = np.array(getattr(quants, kind.name).grid_map) / _DIVISORS.get(kind, 8)
    positive, negative = magnitudes, -magnitudes
    if kind in (_T.IQ1_S, _T.IQ1_M):
        shift = float(quants.IQ1_S.delta)
        positive, negative = 8 * magnitudes + shift, 8 * magnitudes - shift
    return np.concatenate([np.resize(one, half) for one in (positive, negative)])
