"""The codes of GGUF's types as few-bit weights, equal in every bit when they are dequantized.

A row is a sequence of blocks. In most types a block has codes, a scale in float16, and perhaps a
minimum; those of 256 codes (K-quants) have codes of scales for its groups in addition. The layouts
are those of ``ggml-quants.c`` of llama.cpp, as ``gguf.quants`` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import IQ4_NL, MXFP4, NVFP4, Q4_K

from coreai_onnx.huggingface.checkpoints.gguf.codebooks import CODEBOOKS, block_matrix
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedMatrix
from coreai_onnx.model.packed_codes import pack_codes
from coreai_onnx.model.weight_formats import BY_ROW

_CHUNK = 1 << 22  # elements that are unpacked at once: some 50 MB of temporary arrays


class Blocks(NamedTuple):
    """The numbers of some blocks.

    Attributes:
        codes: uint8, ``[blocks, size]``.
        scales: ``[blocks, scales of a block]``; bfloat16 as uint16.
        minimums: The same, or None.
        scale_codes: uint8, ``[blocks, groups]``, or None; with minimums, their codes follow.
    """

    codes: np.ndarray
    scales: np.ndarray
    minimums: np.ndarray | None = None
    scale_codes: np.ndarray | None = None


class BlockType(NamedTuple):
    """How a type of GGUF is stored.

    Attributes:
        bits: Size of a code.
        group_size: Number of neighbors with one scale.
        unpack: Returns the numbers of blocks ``[blocks, bytes]``.
        palette: The values of codes; empty if they are numbers.
        scale_bits: Size of a code of a scale; 0 without them.
    """

    bits: int
    group_size: int
    unpack: Callable[[np.ndarray], Blocks]
    palette: tuple[float, ...] = ()
    scale_bits: int = 0


def packed_matrix(data: np.ndarray, kind: GGMLQuantizationType, rows: int) -> PackedMatrix:
    """Return the weight in the blocks of a tensor, ``[rows, columns]``.

    Args:
        data: The bytes, of any shape.
        kind: The type, one of `PACKED`.
        rows: The number of rows.
    """
    if kind in CODEBOOKS:
        return block_matrix(data, kind, rows)
    layout, (size, bytes_of_block) = TYPES[kind], GGML_QUANT_SIZES[kind]
    blocks = data.reshape(rows, -1, bytes_of_block)
    step = max(1, _CHUNK // max(1, blocks.shape[1] * size))
    chunks = [_parts(blocks[first : first + step], layout) for first in range(0, rows, step)]
    names = chunks[0].keys()
    parts: dict[str, Any] = {
        name: torch.from_numpy(np.concatenate([c[name] for c in chunks])) for name in names
    }
    for name in ("scales", "minimums"):
        if name in parts and parts[name].dtype == torch.uint16:
            parts[name] = parts[name].view(torch.bfloat16)
    palette = torch.tensor(layout.palette, dtype=torch.float16) if layout.palette else None
    return PackedMatrix(**parts, bits=layout.bits, palette=palette, scale_bits=layout.scale_bits)


def packed_experts(data: Sequence[np.ndarray], kind: GGMLQuantizationType) -> PackedMatrix:
    """Return the weights of experts in tensors; the parts have an axis for the experts in front.

    Args:
        data: The bytes of each tensor, ``[experts, rows, bytes]``; rows of one expert are joined.
        kind: The type, one of `PACKED`.
    """
    joined = data[0] if len(data) == 1 else np.concatenate(data, axis=1)
    experts, rows, _ = joined.shape
    matrix = packed_matrix(joined, kind, experts * rows)
    parts: dict[str, Any] = {part: getattr(matrix, part) for part in BY_ROW}
    for name, part in parts.items():
        parts[name] = part if part is None else part.unflatten(0, (experts, rows))
    return replace(matrix, **parts)


def _parts(blocks: np.ndarray, layout: BlockType) -> dict[str, np.ndarray]:
    """Return the parts of the weight of some rows."""
    rows, count, size = blocks.shape
    numbers = layout.unpack(np.ascontiguousarray(blocks).reshape(rows * count, size))
    codes = pack_codes(numbers.codes.reshape(rows, -1, layout.group_size), layout.bits)
    parts = {"codes": codes, "scales": numbers.scales.reshape(rows, -1)}
    if numbers.minimums is not None:
        parts["minimums"] = numbers.minimums.reshape(rows, -1)
    if numbers.scale_codes is not None:
        packed = pack_codes(numbers.scale_codes, layout.scale_bits)
        parts["scale_codes"] = packed.reshape(rows, count, -1)
    return parts


def planes(data: np.ndarray, width: int, bits: int) -> np.ndarray:
    """Return codes that share bytes with those ``width`` places further on."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    codes = data.reshape(len(data), -1, 1, width) >> shifts & np.uint8((1 << bits) - 1)
    return codes.reshape(len(data), -1)


def _halves(data: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(data).view(np.float16)


def _q4_0(b: np.ndarray) -> Blocks:
    return Blocks(planes(b[:, 2:], 16, 4), _halves(b[:, :2]))


def _q4_1(b: np.ndarray) -> Blocks:
    return Blocks(planes(b[:, 4:], 16, 4), _halves(b[:, :2]), -_halves(b[:, 2:4]))


def _fifth_bits(b: np.ndarray) -> np.ndarray:
    return np.unpackbits(b, axis=1, bitorder="little") << 4


def _q5_0(b: np.ndarray) -> Blocks:
    return Blocks(planes(b[:, 6:], 16, 4) | _fifth_bits(b[:, 2:6]), _halves(b[:, :2]))


def _q5_1(b: np.ndarray) -> Blocks:
    codes = planes(b[:, 8:], 16, 4) | _fifth_bits(b[:, 4:8])
    return Blocks(codes, _halves(b[:, :2]), -_halves(b[:, 2:4]))


def _q8_0(b: np.ndarray) -> Blocks:
    return Blocks(b[:, 2:] ^ 0x80, _halves(b[:, :2]))


def _q8_k(b: np.ndarray) -> Blocks:
    # Sums of groups follow, which only products of integers need.
    return Blocks(b[:, 4:260] ^ 0x80, np.ascontiguousarray(b[:, :4]).view(np.float32))


def _q2_k(b: np.ndarray) -> Blocks:
    levels = np.concatenate([b[:, :16] & 15, b[:, :16] >> 4], axis=1)
    return Blocks(planes(b[:, 16:80], 32, 2), _halves(b[:, 80:82]), _halves(b[:, 82:]), levels)


def _q3_k(b: np.ndarray) -> Blocks:
    codes = planes(b[:, 32:96], 32, 2) | planes(b[:, :32], 32, 1) << 2
    levels = planes(b[:, 96:104], 8, 4) | planes(b[:, 104:108], 4, 2) << 4
    return Blocks(codes, _halves(b[:, 108:]), None, levels)


def _q4_k(b: np.ndarray) -> Blocks:
    levels = np.concatenate(Q4_K.get_scale_min(np.ascontiguousarray(b[:, 4:16])), axis=1)
    return Blocks(planes(b[:, 16:], 32, 4), _halves(b[:, :2]), _halves(b[:, 2:4]), levels)


def _q5_k(b: np.ndarray) -> Blocks:
    k = _q4_k(np.delete(b, np.s_[16:48], axis=1))
    return k._replace(codes=k.codes | planes(b[:, 16:48], 32, 1) << 4)


def _q6_k(b: np.ndarray) -> Blocks:
    codes = planes(b[:, :128], 64, 4) | planes(b[:, 128:192], 32, 2) << 4
    return Blocks(codes, _halves(b[:, 208:]), None, b[:, 192:208] ^ 0x80)


def _iq4_xs(b: np.ndarray) -> Blocks:
    levels = planes(b[:, 4:8], 1, 4) | planes(b[:, 2:4], 1, 2) << 4
    return Blocks(planes(b[:, 8:], 16, 4), _halves(b[:, :2]), None, levels)


def _tq2_0(b: np.ndarray) -> Blocks:
    return Blocks(planes(b[:, :64], 32, 2), _halves(b[:, 64:]))


def _mxfp4(b: np.ndarray) -> Blocks:
    # Powers of 2 down to 2^-128, which bfloat16 has as subnormal numbers.
    scales = MXFP4.e8m0_to_fp32_half(b[:, :1]).view(np.uint32) >> 16
    return Blocks(planes(b[:, 1:], 16, 4), scales.astype(np.uint16))


def _nvfp4(b: np.ndarray) -> Blocks:
    scales = NVFP4.ue4m3_to_fp32(b[:, :4]).astype(np.float16)
    return Blocks(planes(b[:, 4:], 8, 4), scales)


_T = GGMLQuantizationType
TYPES: Mapping[GGMLQuantizationType, BlockType] = {
    _T.Q4_0: BlockType(4, 32, _q4_0),
    _T.Q4_1: BlockType(4, 32, _q4_1),
    _T.Q5_0: BlockType(5, 32, _q5_0),
    _T.Q5_1: BlockType(5, 32, _q5_1),
    _T.Q8_0: BlockType(8, 32, _q8_0),
    _T.Q2_K: BlockType(2, 16, _q2_k, (), 4),
    _T.Q3_K: BlockType(3, 16, _q3_k, (), 6),
    _T.Q4_K: BlockType(4, 32, _q4_k, (), 6),
    _T.Q5_K: BlockType(5, 32, _q5_k, (), 6),
    _T.Q6_K: BlockType(6, 16, _q6_k, (), 8),
    _T.Q8_K: BlockType(8, 256, _q8_k),
    _T.IQ4_NL: BlockType(4, 32, _q4_0, IQ4_NL.kvalues),
    _T.IQ4_XS: BlockType(4, 32, _iq4_xs, IQ4_NL.kvalues, 6),
    _T.TQ2_0: BlockType(2, 256, _tq2_0, (-1, 0, 1, 2)),
    _T.MXFP4: BlockType(4, 32, _mxfp4, MXFP4.kvalues),
    _T.NVFP4: BlockType(4, 16, _nvfp4, NVFP4.kvalues),
}
"""The types of one code per value."""
PACKED = (*TYPES, *CODEBOOKS)
"""The types that stay as they are."""
FLOATS = (_T.F32, _T.F16, _T.BF16, _T.F64)
"""The types of floating-point numbers."""
