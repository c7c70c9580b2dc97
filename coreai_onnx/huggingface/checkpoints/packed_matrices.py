"""Matrices of few bits, as all formats of checkpoints hold them, and the layer of one.

All formats pack codes as a little-endian bit stream, or in an order that differs from it within a
byte or a word. Here the stream runs along the rows of the matrix ``[outputs, inputs]``. Weights are
never dequantized: a layer calls the composite ``linear_nbits`` with the codes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from coreai_onnx.composite_ops.call import call
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.model.packed_codes import CODE_BITS, pack_codes, unpack_codes


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix ``(code - zero_point) * scale``, or ``palette[code] * scale``.

    Attributes:
        codes: uint8, ``[outputs, groups, group_size * bits / 8]``.
        scales: ``[outputs, groups]``, floating.
        bits: Size of a code.
        zero_points: uint8, ``[outputs, groups]``; None for ``2 ** (bits - 1)``.
        palette: ``[2 ** bits]``, floating; None if codes are numbers.
        order: The input of each column, if columns were sorted by group; int64, ``[inputs]``.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    bits: int
    zero_points: torch.Tensor | None = None
    palette: torch.Tensor | None = None
    order: torch.Tensor | None = None

    @property
    def group_size(self) -> int:
        """The number of neighbors in a row with one scale."""
        return self.codes.shape[-1] * 8 // self.bits

    def sorted_by(self, groups: torch.Tensor | None) -> PackedMatrix:
        """Return the matrix with its columns in the order of their groups.

        Args:
            groups: The group of each column, ``[inputs]``; None, or ascending, changes nothing.

        Raises:
            ModelSourceError: If the groups have different numbers of columns.
        """
        if groups is None or bool((groups.diff() >= 0).all()):
            return self
        counts = groups.bincount()
        if len(counts.unique()) != 1 or len(counts) != self.scales.shape[1]:
            raise ModelSourceError("the groups of columns (g_idx) have different sizes")
        order = groups.long().argsort(stable=True)
        rows = unpack_codes(self.codes.flatten(1).numpy(), self.bits)[:, order.numpy()]
        codes = torch.from_numpy(pack_codes(rows, self.bits)).view(self.codes.shape)
        return replace(self, codes=codes, order=order)


def packed_rows(words: torch.Tensor, scales: torch.Tensor, bits: int, columns: int) -> torch.Tensor:
    """Return a bit stream in words or bytes ``[outputs, …]`` as codes in groups.

    Args:
        words: int32 or uint8; a row holds the codes of one row of the matrix, perhaps padded.
        scales: ``[outputs, groups]``.
        bits: Size of a code.
        columns: The number of inputs.

    Raises:
        ModelSourceError: If the size of a code is unsupported, or shapes contradict each other.
    """
    check_bits(bits)
    groups = scales.shape[-1]
    stream = words.contiguous().view(torch.uint8)[:, : columns * bits // 8]
    if scales.shape[0] != len(words) or columns % groups or (columns // groups) * bits % 8:
        raise ModelSourceError(
            f"{columns} inputs of {len(words)} outputs do not divide into the groups of scales "
            f"{list(scales.shape)}"
        )
    if stream.shape[1] * 8 != columns * bits:
        raise ModelSourceError(f"{words.shape[1]} words do not hold {columns} codes of {bits} bits")
    return stream.reshape(len(words), groups, -1).contiguous()


def unpacked_rows(words: torch.Tensor, bits: int, columns: int) -> torch.Tensor:
    """Return the codes in a bit stream in words ``[rows, …]``, uint8 ``[rows, columns]``.

    Raises:
        ModelSourceError: If the size of a code is unsupported.
    """
    check_bits(bits)
    stream = words.contiguous().view(torch.uint8).numpy()
    return torch.from_numpy(np.ascontiguousarray(unpack_codes(stream, bits)[:, :columns]))


def check_bits(bits: object) -> None:
    """Check the size of a code.

    Raises:
        ModelSourceError: If no kernel has it.
    """
    if bits not in CODE_BITS:
        raise ModelSourceError(f"weights of {bits} bits are not supported, only of {CODE_BITS}")


class CheckpointLayer(torch.nn.Module):
    """A linear layer with a quantized weight, whose parts are buffers."""

    bias: torch.Tensor | None

    def hold(self, name: str, value: torch.Tensor | None) -> None:
        """Register a buffer; torch 2.13 does not export a module with a buffer that is None."""
        self.__dict__.pop(name, None)  # None, from before
        if value is None:
            setattr(self, name, None)
        else:
            self.register_buffer(name, value)


class PackedLinear(CheckpointLayer):
    """A linear layer with a packed weight.

    Args:
        weight: The weight.
        bias: ``[outputs]``, or None.
        rounding: Rounds the inputs; None for none.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zero_points: torch.Tensor | None
    palette: torch.Tensor | None
    order: torch.Tensor | None

    def __init__(
        self,
        weight: PackedMatrix,
        bias: torch.Tensor | None = None,
        rounding: torch.nn.Module | None = None,
    ) -> None:
        """Register the parts of the weight as buffers."""
        super().__init__()
        self.bits, self.group_size, self.rounding = weight.bits, weight.group_size, rounding
        for name in ("codes", "scales", "zero_points", "palette", "order"):
            self.hold(name, getattr(weight, name))
        self.hold("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x @ weight.T + bias``, ``[..., inputs]`` to ``[..., outputs]``."""
        if self.rounding is not None:
            x = self.rounding(x)
        if self.order is not None:
            x = x.index_select(-1, self.order)
        parts = (self.codes, self.scales, self.zero_points, self.palette, self.bias)
        return call("linear_nbits", x, *parts, bits=self.bits, group_size=self.group_size)
