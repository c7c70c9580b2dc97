"""Matrices of few bits, as all formats of checkpoints hold them, and the layer of one.

All formats pack codes as a little-endian bit stream, or in an order that differs from it within a
byte or a word. Here the stream runs along the rows of the matrix ``[outputs, inputs]``. Weights are
never dequantized: a layer calls the composite ``linear_nbits`` with the codes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from coreai_onnx.composites.torch_ops import call
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.rounded_activations import Rounding
from coreai_onnx.model.files.mapped_tensors import on_disk
from coreai_onnx.model.packed_codes import STREAM_BITS, pack_codes, unpack_codes
from coreai_onnx.model.weight_formats import BEFORE_BIAS, BLOCK_SIZE, BY_ROW, CODE_BITS, NAMES

_BYTE = 8
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 1 << 20  # scales that are searched for values at once
_LEAST_SCALES = 1024  # fewer are not worth a table


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix in the parts of `linear_nbits`.

    Attributes:
        codes: uint8, ``[outputs, groups, group_size * bits / 8]``.
        scales: ``[outputs, groups]``, floating.
        bits: Size of a code.
        zero_points: uint8 or floating, ``[outputs, groups]``; None for ``2 ** (bits - 1)``.
        palette: ``[2 ** bits]``, floating; None if codes are numbers.
        order: The input of each column, if columns were sorted by group; int64, ``[inputs]``.
        minimums: As for `linear_nbits`, or None.
        scale_codes: As for `linear_nbits`, or None; `scales` are those of blocks then.
        scale_bits: Size of a code of a scale.
        table: As for `linear_nbits`, or None; `codes` are then blocks, ``[outputs, blocks,
            bytes]``, and `scales` those of blocks.
        layout: As for `linear_nbits`, or None.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    bits: int
    zero_points: torch.Tensor | None = None
    palette: torch.Tensor | None = None
    order: torch.Tensor | None = None
    minimums: torch.Tensor | None = None
    scale_codes: torch.Tensor | None = None
    scale_bits: int = 0
    table: torch.Tensor | None = None
    layout: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs of a matrix."""
        rows, count = self.codes.shape[:2]
        return rows, count * (self.group_size if self.table is None else BLOCK_SIZE)

    @property
    def group_size(self) -> int:
        """The number of neighbors in a row with one scale."""
        if self.table is not None and self.layout is not None:
            groups = len(self.layout) - 2 * BLOCK_SIZE // self.table.shape[1]
            return BLOCK_SIZE // groups
        return self.codes.shape[-1] * 8 // self.bits

    def on_disk(self) -> PackedMatrix:
        """Return the matrix with its large parts in the scratch file, if there is one."""
        return replace(self, **{n: _on_disk(getattr(self, n)) for n in (*BY_ROW, "order")})

    @property
    def sizes(self) -> dict[str, int]:
        """The attributes of a composite with this weight."""
        return {"bits": self.bits, "group_size": self.group_size, "scale_bits": self.scale_bits}


def _on_disk(part: Any) -> Any:
    if not isinstance(part, torch.Tensor):
        return part
    # numpy has no bfloat16.
    stored = on_disk(part.contiguous().view(torch.uint8).numpy()) if part.dim() else None
    return part if stored is None else torch.from_numpy(stored).view(part.dtype)


class LayerWeight(NamedTuple):
    """The weight of a linear layer in a checkpoint.

    Attributes:
        matrix: The weight, ``[outputs, inputs]``.
        rounding: Rounds the inputs of the layer, or None.
    """

    matrix: PackedMatrix
    rounding: Rounding | None = None


def of_stream(
    words: torch.Tensor,
    scales: torch.Tensor,
    bits: int,
    columns: int,
    group_size: int | None = None,
    *,
    zero_points: torch.Tensor | None = None,
    palette: torch.Tensor | None = None,
    groups: torch.Tensor | None = None,
) -> PackedMatrix:
    """Return the matrix of a bit stream.

    Args:
        words: Integers ``[outputs, …]``; a row holds the codes of one row, perhaps padded.
        scales: ``[outputs, groups]``, floating.
        bits: Size of a code.
        columns: The number of inputs.
        group_size: As for `of_codes`.
        zero_points: uint8, ``[outputs, groups]``, or None.
        palette: The values of codes, or None.
        groups: As for `of_codes`.

    Raises:
        ModelSourceError: If the size of a code is unsupported, or shapes contradict each other.
    """
    check_bits(bits)
    stream = _stream(words, bits, columns)
    size = _group_size(scales, columns, group_size)
    _check_scales(scales, len(words), columns, size)
    # Files with g_idx often have it in ascending order: nothing is to be sorted then.
    sorted_already = groups is None or torch.equal(groups.long(), torch.arange(columns) // size)
    # The bytes of the file serve as they are; all other cases unpack them and pack them again.
    if bits in CODE_BITS and sorted_already and columns % size == 0 and size * bits % 8 == 0:
        codes = stream[:, : columns * bits // 8].reshape(*scales.shape, -1).contiguous()
        return PackedMatrix(codes, scales, bits, zero_points, palette)
    codes = _unpacked(stream, bits, columns)
    parts = {"zero_points": zero_points, "palette": palette, "groups": groups}
    return of_codes(codes, scales, bits, size, **parts)


def of_codes(
    codes: torch.Tensor,
    scales: torch.Tensor,
    bits: int,
    group_size: int | None = None,
    *,
    zero_points: torch.Tensor | None = None,
    palette: torch.Tensor | None = None,
    groups: torch.Tensor | None = None,
) -> PackedMatrix:
    """Return a matrix of codes, packed in groups that `linear_nbits` can hold.

    A group size that does not divide a row becomes its largest divisor that does, with repeated
    scales. Where codes of a group do not fill whole bytes, or no kernel has their size, they are
    stored in more bits. Values stay the same in every bit.

    Args:
        codes: uint8, ``[outputs, inputs]``.
        scales: ``[outputs, groups]``, floating.
        bits: Size of a code.
        group_size: Number of neighbors in a row with one scale; the last group may be smaller.
            None divides a row into equal groups.
        zero_points: uint8 or floating, ``[outputs, groups]``; None for ``2 ** (bits - 1)``.
        palette: ``[2 ** bits]``, floating; None if codes are numbers.
        groups: The group of each column, ``[inputs]``; None for neighbors.

    Raises:
        ModelSourceError: If shapes contradict each other.
    """
    columns = codes.shape[1]
    size = _group_size(scales, columns, group_size)
    _check_scales(scales, len(codes), columns, size)
    of = torch.arange(columns) // size if groups is None else groups.long()
    if len(of) != columns or not 0 <= int(of.min()) <= int(of.max()) < scales.shape[1]:
        raise ModelSourceError(
            f"the groups of columns (g_idx) must be {columns} numbers below {scales.shape[1]}"
        )
    # A sort that is not stable would also move neighbors that share a scale.
    order = None if bool((of.diff() >= 0).all()) else of.argsort(stable=True)
    if order is not None:
        codes, of = codes[:, order], of[order]
    starts = torch.nonzero(of.diff()).flatten().tolist()
    # The largest size with which no group of linear_nbits lies across two groups of the file.
    step = math.gcd(columns, *(start + 1 for start in starts))
    # 8 bits always serve: a code is a whole byte then.
    stored = min(n for n in CODE_BITS if n >= bits and step * n % 8 == 0)
    if palette is not None:
        # More bits mean more entries of the palette, which no code selects.
        palette = torch.nn.functional.pad(palette, (0, (1 << stored) - len(palette)))
    elif zero_points is None:
        # Without zero points, codes are read relative to the middle, which is another one with more
        # bits.
        codes = codes + ((1 << stored >> 1) - (1 << bits >> 1))
    packed = torch.from_numpy(pack_codes(codes.numpy(), stored))
    chosen = of[::step]
    zeros = None if zero_points is None else zero_points[:, chosen].contiguous()
    shape = (len(codes), columns // step, -1)
    return PackedMatrix(
        packed.view(shape), scales[:, chosen].contiguous(), stored, zeros, palette, order
    )


def by_rows(values: torch.Tensor, shape: tuple[int, int], group_size: int) -> torch.Tensor:
    """Return the values of groups that continue from row to row, ``[outputs, groups]``.

    Args:
        values: One for each group of neighbors in the elements of a matrix.
        shape: Outputs and inputs.
        group_size: Size of a group; one that does not divide a row becomes its largest divisor
            that does, with repeated values.

    Raises:
        ModelSourceError: If there are more or fewer groups.
    """
    rows, columns = shape
    if len(values) != -(-rows * columns // group_size):
        raise ModelSourceError(
            f"a weight {list(shape)} in groups of {group_size} must have "
            f"{-(-rows * columns // group_size)} scales, got {len(values)}"
        )
    # A part lies within one row and within one group.
    part = math.gcd(columns, group_size)
    starts = torch.arange(rows * columns // part) * part
    return values[starts // group_size].view(rows, -1)


def unpacked_rows(words: torch.Tensor, bits: int, columns: int) -> torch.Tensor:
    """Return the codes in a bit stream in words ``[rows, …]``, uint8 ``[rows, columns]``.

    Raises:
        ModelSourceError: If the size of a code is unsupported, or there are more or fewer words.
    """
    check_bits(bits)
    return _unpacked(_stream(words, bits, columns), bits, columns)


def check_bits(bits: object) -> int:
    """Return the size of a code after checking that it fits into a byte.

    Raises:
        ModelSourceError: If the size is not from 2 to 8.
    """
    if not isinstance(bits, int) or not 2 <= bits <= _BYTE:
        raise ModelSourceError(f"weights of {bits} bits are not supported, only of 2 to {_BYTE}")
    return bits


def _stream(words: torch.Tensor, bits: int, columns: int) -> torch.Tensor:
    """Return the bytes of the words that hold the codes of each row, including padding."""
    if words.dtype.is_floating_point or words.dtype.is_complex or words.dim() != 2:
        raise ModelSourceError(
            f"packed codes must be a matrix of integers, got {words.dtype} {list(words.shape)}"
        )
    if words.shape[1] != -(-columns * bits // (words.element_size() * _BYTE)):
        raise ModelSourceError(f"{words.shape[1]} words do not hold {columns} codes of {bits} bits")
    return words.contiguous().view(torch.uint8)


def _unpacked(stream: torch.Tensor, bits: int, columns: int) -> torch.Tensor:
    rows = stream.numpy()
    if bits in STREAM_BITS:
        # Codes of 3 bits come back in step with bytes only after 8 of them.
        rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % (math.lcm(bits, _BYTE) // _BYTE))))
        return torch.from_numpy(np.ascontiguousarray(unpack_codes(rows, bits)[:, :columns]))
    # 5, 6 and 7 bits are rare in files: bit by bit is slow, but short.
    places = np.unpackbits(rows, axis=1, bitorder="little")[:, : columns * bits]
    shifts = np.uint8(1) << np.arange(bits, dtype=np.uint8)
    return torch.from_numpy(places.reshape(len(rows), columns, bits) @ shifts)


def _group_size(scales: torch.Tensor, columns: int, size: int | None) -> int:
    """Return the given group size, or the length of a row divided by the number of scales."""
    if scales.dim() != 2 or not scales.dtype.is_floating_point:
        raise ModelSourceError(
            f"scales must be a floating-point matrix, got {scales.dtype} {list(scales.shape)}"
        )
    if size is not None:
        # Files write -1 for one group per row, and may have rows that are shorter than a group.
        return size if 0 < size < columns else columns
    return max(1, columns // max(1, scales.shape[1]))


def _check_scales(scales: torch.Tensor, rows: int, columns: int, size: int) -> None:
    groups = -(-columns // size)
    if tuple(scales.shape) != (rows, groups):
        raise ModelSourceError(
            f"scales must be {[rows, groups]} for {columns} inputs in groups of {size}, got "
            f"{list(scales.shape)}"
        )


class CheckpointModule(torch.nn.Module):
    """A module with quantized weights, whose parts are buffers."""

    def hold(self, name: str, value: torch.Tensor | None) -> None:
        """Register a buffer; torch 2.13 does not export a module with a buffer that is None."""
        self.__dict__.pop(name, None)  # None, from before
        if value is None:
            setattr(self, name, None)
        else:
            self.register_buffer(name, value)

    def hold_weight(self, weight: PackedMatrix, prefix: str = "") -> None:
        """Register the parts of a weight, whose names begin with a prefix."""
        for name in (*NAMES, "order"):
            self.hold(prefix + name, getattr(weight, name))
        scales, values = _in_bytes(weight)
        self.hold(f"{prefix}scales", scales)
        self.hold(f"{prefix}scale_values", values)

    def weight_parts(self, prefix: str = "") -> list[Any]:
        """Return the parts of a weight as composites take them, in the order of `NAMES`."""
        codes, scales, *others = (getattr(self, prefix + name) for name in NAMES)
        if (values := getattr(self, f"{prefix}scale_values")) is not None:
            scales = values[scales.int()]
        return [codes, scales, *others]


def _in_bytes(weight: PackedMatrix) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return scales of a few values, as those of FP4 are, as bytes and what they select.

    Other scales are returned as they are, with None.
    """
    scales = weight.scales
    if weight.palette is None or weight.scale_codes is not None or scales.numel() < _LEAST_SCALES:
        return scales, None
    numbers = scales.contiguous().view(_INTEGERS[scales.dtype.itemsize])
    distinct = numbers.new_empty(0)
    for some in numbers.flatten().split(_CHUNK):
        distinct = torch.cat([distinct, some]).unique()
        if len(distinct) > 1 << _BYTE:
            return scales, None
    places = [
        torch.searchsorted(distinct, some).to(torch.uint8)
        for some in numbers.flatten().split(_CHUNK)
    ]
    return torch.cat(places).view(scales.shape), distinct.view(scales.dtype)


class CheckpointLayer(CheckpointModule):
    """A linear layer with a quantized weight."""

    bias: torch.Tensor | None


class PackedLinear(CheckpointLayer):
    """A linear layer with a packed weight.

    Args:
        weight: The weight.
        bias: ``[outputs]``, or None.
        rounding: Rounds the inputs, or None.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    order: torch.Tensor | None

    def __init__(
        self,
        weight: PackedMatrix,
        bias: torch.Tensor | None = None,
        rounding: torch.nn.Module | None = None,
    ) -> None:
        """Register the parts of the weight as buffers."""
        super().__init__()
        self.sizes = weight.sizes
        self.rounding = rounding
        self.hold_weight(weight)
        self.hold("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x @ weight.T + bias``, ``[..., inputs]`` to ``[..., outputs]``."""
        if self.rounding is not None:
            x = self.rounding(x)
        if self.order is not None:
            # The columns were sorted once, when the checkpoint was read; the inputs follow in each
            # call.
            x = x.index_select(-1, self.order)
        parts = self.weight_parts()
        parts.insert(BEFORE_BIAS, self.bias)
        return call("linear_nbits", x, *parts, **self.sizes)
