"""Few-bit weights as the blocks of GGUF's types, the inverse of `blocks`.

A weight fits a type if the dequantized values are equal in every bit. Weights that came from a GGUF
fit the type that they had. Weights of the quantizer have integer codes, zero points and one scale
for a group of 32 or more:

* with 4 bits and zero points, Q4_1 keeps the codes if ``scale * zero_point`` is a float16 number;
* otherwise the differences of code and zero point are the codes of Q4_0, Q5_0 or Q8_0, the smallest
  whose range has them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import MXFP4, NVFP4

from coreai_onnx.composites.few_bit_weights import chunks, unpacked
from coreai_onnx.huggingface.checkpoints.gguf.blocks import TYPES, Blocks
from coreai_onnx.huggingface.checkpoints.gguf.codebooks import block_bytes, kind_of_blocks
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedMatrix
from coreai_onnx.model.packed_codes import pack_codes, unpack_codes
from coreai_onnx.model.weight_formats import NAMES

_T = GGMLQuantizationType
_GROUP = 32
_OF_INTEGERS = {_T.Q4_0: 4, _T.Q5_0: 5, _T.Q8_0: 8}
"""Types of signed integers and one scale, with the bits of a code; smallest first."""
_WITH_MINIMUMS = {_T.Q4_1: 4, _T.Q5_1: 5}


def by_rows(matrix: PackedMatrix) -> Iterator[PackedMatrix]:
    """Yield the weight in chunks of rows."""
    for parts in chunks([getattr(matrix, name) for name in NAMES]):
        named: dict[str, Any] = dict(zip(NAMES, parts, strict=True))
        yield replace(matrix, **named)


def fit(
    matrix: PackedMatrix, *, round_minimums: bool = False
) -> tuple[GGMLQuantizationType, Callable[[PackedMatrix], np.ndarray]] | None:
    """Return the type that holds a weight, and what packs its rows; None if there is none.

    Args:
        matrix: The weight, with neighbors in groups.
        round_minimums: Whether ``scale * zero_point`` may be rounded to float16.
    """
    if matrix.table is not None:
        kind_of_table = kind_of_blocks(matrix)
        if kind_of_table is None:
            return None
        return kind_of_table, functools.partial(block_bytes, kind=kind_of_table)
    matrix = _in_units_of_gguf(matrix)
    for kind in _PACKERS:
        if _is(matrix, kind) and all(_is_equal(rows, kind) for rows in by_rows(matrix)):
            return kind, functools.partial(_packed_as_is, kind=kind)
    plain = matrix.palette is None and matrix.minimums is None and not matrix.scale_bits
    if not plain or matrix.group_size % _GROUP or not _are_halves(matrix.scales):
        return None
    kinds = (_WITH_MINIMUMS if matrix.zero_points is not None else {}) | _OF_INTEGERS
    for kind in kinds:
        if all(_converted(rows, kind, exact=not round_minimums) for rows in by_rows(matrix)):
            return kind, functools.partial(_packed_integers, kind=kind)
    return None


def packed_blocks(matrix: PackedMatrix, kind: GGMLQuantizationType) -> np.ndarray:
    """Return the bytes of a weight that a type can hold, ``[rows, bytes]``."""
    layout, size = TYPES[kind], GGML_QUANT_SIZES[kind][0]
    parts = {}
    for name in ("scales", "minimums"):
        if (values := getattr(matrix, name)) is not None:
            count = 1 if layout.scale_bits else size // layout.group_size
            parts[name] = values.float().numpy().reshape(-1, count)
    if matrix.scale_codes is not None:
        packed = matrix.scale_codes.numpy()
        parts["scale_codes"] = unpack_codes(packed.reshape(-1, packed.shape[-1]), layout.scale_bits)
    codes = unpack_codes(matrix.codes.numpy(), layout.bits).reshape(-1, size)
    return _PACKERS[kind](Blocks(codes, **parts)).reshape(len(matrix.codes), -1)


def _in_units_of_gguf(matrix: PackedMatrix) -> PackedMatrix:
    """Return the weight with the palette of GGUF, which has the values of FP4 doubled."""
    palette, doubled = matrix.palette, torch.tensor(MXFP4.kvalues, dtype=torch.float32)
    if palette is None or not torch.equal(palette.float() * 2, doubled):
        return matrix
    return replace(matrix, palette=doubled, scales=matrix.scales.float() / 2)


def _is(matrix: PackedMatrix, kind: GGMLQuantizationType) -> bool:
    """Return whether a weight has the layout of a type."""
    layout, size = TYPES[kind], GGML_QUANT_SIZES[kind][0]
    sizes = (matrix.bits, matrix.group_size, matrix.scale_bits)
    palette = () if matrix.palette is None else tuple(matrix.palette.float().tolist())
    return (
        sizes == (layout.bits, layout.group_size, layout.scale_bits)
        and palette == tuple(float(value) for value in layout.palette)
        and matrix.zero_points is None
        and (matrix.minimums is not None) == (kind in _HAVE_MINIMUMS)
        and matrix.codes.shape[1] * matrix.group_size % size == 0
    )


def _is_equal(rows: PackedMatrix, kind: GGMLQuantizationType) -> bool:
    """Return whether a type has the numbers of a weight."""
    with np.errstate(over="ignore", invalid="ignore"):
        data = packed_blocks(rows, kind)
    back = TYPES[kind].unpack(data.reshape(-1, GGML_QUANT_SIZES[kind][1]))
    scales = back.scales
    if scales.dtype == np.uint16:  # bfloat16
        scales = (scales.astype(np.uint32) << 16).view(np.float32)
    pairs = [(scales, rows.scales)]
    if back.minimums is not None and rows.minimums is not None:
        pairs.append((back.minimums, rows.minimums))
    return all(
        np.array_equal(new.astype(np.float32).ravel(), old.float().numpy().ravel())
        for new, old in pairs
    )


def _are_halves(values: torch.Tensor) -> bool:
    return bool((values.half().float() == values.float()).all())


def _packed_as_is(rows: PackedMatrix, kind: GGMLQuantizationType) -> np.ndarray:
    return packed_blocks(_in_units_of_gguf(rows), kind)


def _packed_integers(rows: PackedMatrix, kind: GGMLQuantizationType) -> np.ndarray:
    converted = _converted(rows, kind, exact=False)
    assert converted is not None
    return packed_blocks(converted, kind)


def _converted(
    rows: PackedMatrix, kind: GGMLQuantizationType, *, exact: bool
) -> PackedMatrix | None:
    """Return a weight of integers in the layout of a type; None if its codes cannot hold it."""
    codes, repeats = unpacked(rows.codes, rows.bits).flatten(1), rows.group_size // _GROUP
    scales, zeros = rows.scales.float(), rows.zero_points
    bits, minimums = (_WITH_MINIMUMS | _OF_INTEGERS)[kind], None
    if kind in _WITH_MINIMUMS:
        assert zeros is not None
        products = scales.double() * zeros.double()
        minimums = products.half()
        if rows.bits > bits or (exact and not torch.equal(minimums.double(), products)):
            return None
        minimums = minimums.float().repeat_interleave(repeats, 1)
    else:
        if zeros is None:
            zeros = torch.full((), 1 << (rows.bits - 1))
        elif zeros.is_floating_point() and not torch.equal(zeros, zeros.round()):
            return None
        else:
            zeros = zeros.int().repeat_interleave(rows.group_size, 1)
        codes = codes - zeros + (1 << (bits - 1))
        if not 0 <= int(codes.min()) <= int(codes.max()) < 1 << bits:
            return None
    packed = pack_codes(codes.to(torch.uint8).numpy().reshape(len(codes), -1, _GROUP), bits)
    scales = scales.repeat_interleave(repeats, 1)
    return PackedMatrix(torch.from_numpy(packed), scales, bits, minimums=minimums)


def _joined(codes: np.ndarray, width: int, bits: int) -> np.ndarray:
    """Return codes of which those ``width`` places apart share bytes: see `blocks.planes`."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    parts = codes.reshape(len(codes), -1, 8 // bits, width) << shifts
    joined: np.ndarray = np.bitwise_or.reduce(parts, axis=2)
    return joined.reshape(len(codes), -1)


def _halves(*values: np.ndarray) -> np.ndarray:
    return np.concatenate(values, axis=1).astype(np.float16).view(np.uint8)


def _numbers(b: Blocks) -> np.ndarray:
    """Return scale and minimum; in types of one level, minimums are added."""
    minimums = (
        [] if b.minimums is None else [b.minimums if b.scale_codes is not None else -b.minimums]
    )
    return _halves(b.scales, *minimums)


def _bytes(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts, axis=1)


def _q4(b: Blocks) -> np.ndarray:
    return _bytes(_numbers(b), _joined(b.codes, 16, 4))


def _q5(b: Blocks) -> np.ndarray:
    fifth = np.packbits(b.codes >> 4, axis=1, bitorder="little")
    return _bytes(_numbers(b), fifth, _joined(b.codes & 15, 16, 4))


def _q8_0(b: Blocks) -> np.ndarray:
    return _bytes(_numbers(b), b.codes ^ 0x80)


def _levels(b: Blocks) -> np.ndarray:
    assert b.scale_codes is not None
    return b.scale_codes


def _q2_k(b: Blocks) -> np.ndarray:
    levels = _levels(b)
    return _bytes(levels[:, :16] | levels[:, 16:] << 4, _joined(b.codes, 32, 2), _numbers(b))


def _q3_k(b: Blocks) -> np.ndarray:
    levels = _levels(b)
    of_codes = _bytes(_joined(b.codes >> 2, 32, 1), _joined(b.codes & 3, 32, 2))
    return _bytes(of_codes, _joined(levels & 15, 8, 4), _joined(levels >> 4, 4, 2), _numbers(b))


def _levels_6(b: Blocks) -> np.ndarray:
    """Return 8 scales and 8 minimums of 6 bits in 12 bytes."""
    scales, minimums = np.split(_levels(b), 2, axis=1)
    low, high = np.split(scales, 2, axis=1)
    low_minimums, high_minimums = np.split(minimums, 2, axis=1)
    first = (low | high >> 4 << 6, low_minimums | high_minimums >> 4 << 6)
    return _bytes(*first, high & 15 | (high_minimums & 15) << 4)


def _q4_k(b: Blocks) -> np.ndarray:
    return _bytes(_numbers(b), _levels_6(b), _joined(b.codes, 32, 4))


def _q5_k(b: Blocks) -> np.ndarray:
    of_codes = _bytes(_joined(b.codes >> 4, 32, 1), _joined(b.codes & 15, 32, 4))
    return _bytes(_numbers(b), _levels_6(b), of_codes)


def _q6_k(b: Blocks) -> np.ndarray:
    of_codes = _bytes(_joined(b.codes & 15, 64, 4), _joined(b.codes >> 4, 32, 2))
    return _bytes(of_codes, _levels(b) ^ 0x80, _numbers(b))


def _iq4_xs(b: Blocks) -> np.ndarray:
    levels = _levels(b)
    of_levels = _bytes(_joined(levels >> 4, 1, 2), _joined(levels & 15, 1, 4))
    return _bytes(_numbers(b), of_levels, _joined(b.codes, 16, 4))


def _tq2_0(b: Blocks) -> np.ndarray:
    return _bytes(_joined(b.codes, 32, 2), _numbers(b))


def _nearest(values: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the places of values among increasing numbers."""
    places = np.searchsorted(numbers, values.astype(np.float32))
    return np.minimum(places, len(numbers) - 1).astype(np.uint8)


def _mxfp4(b: Blocks) -> np.ndarray:
    numbers = MXFP4.e8m0_to_fp32_half(np.arange(255, dtype=np.uint8))
    return _bytes(_nearest(b.scales, numbers), _joined(b.codes, 16, 4))


def _nvfp4(b: Blocks) -> np.ndarray:
    numbers = NVFP4.ue4m3_to_fp32(np.arange(127, dtype=np.uint8)).astype(np.float32)
    return _bytes(_nearest(b.scales, numbers), _joined(b.codes, 8, 4))


_PACKERS: Mapping[GGMLQuantizationType, Callable[[Blocks], np.ndarray]] = {
    _T.Q4_0: _q4,
    _T.Q4_1: _q4,
    _T.Q5_0: _q5,
    _T.Q5_1: _q5,
    _T.Q8_0: _q8_0,
    _T.Q2_K: _q2_k,
    _T.Q3_K: _q3_k,
    _T.Q4_K: _q4_k,
    _T.Q5_K: _q5_k,
    _T.Q6_K: _q6_k,
    _T.IQ4_NL: _q4,
    _T.IQ4_XS: _iq4_xs,
    _T.TQ2_0: _tq2_0,
    _T.MXFP4: _mxfp4,
    _T.NVFP4: _nvfp4,
}
"""The types of one code per value that weights are written in."""
_HAVE_MINIMUMS = (_T.Q4_1, _T.Q5_1, _T.Q2_K, _T.Q4_K, _T.Q5_K)
