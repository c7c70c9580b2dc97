"""Codes of small floats: FP8, FP4, MXFP4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from coreai_onnx.composites.few_bit_weights import numbers_of
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.packed_matrices import (
    LayerWeight,
    PackedMatrix,
    of_codes,
    of_stream,
)
from coreai_onnx.huggingface.checkpoints.settings import COMMON, Checkpoint, check_settings
from coreai_onnx.model.weight_formats import E2M1, E4M3, FORMATS

FLOAT8 = torch.float8_e4m3fn
_BIAS = 127


def float8_matrix(
    weight: torch.Tensor, scales: torch.Tensor, blocks: Sequence[int] | None = None
) -> PackedMatrix:
    """Return a weight in float8.

    Args:
        weight: float8 (E4M3), ``[outputs, inputs]``.
        scales: One element, or one for each row, group of a row or block of the weight.
        blocks: Rows and columns of a block; the last ones may be smaller. None divides the weight
            evenly.

    Raises:
        ModelSourceError: If the weight has another dtype, or the blocks do not divide it.
    """
    if weight.dtype != FLOAT8:
        raise ModelSourceError(f"the weight must be {FLOAT8}, got {weight.dtype}")
    scales = scales.reshape(-1, 1) if scales.dim() < 2 else scales
    rows, size = _block(scales, weight.shape, blocks)
    # Groups run along rows only: a block of rows becomes rows with equal scales.
    spread = scales[torch.arange(len(weight)) // rows]
    return of_codes(
        weight.view(torch.uint8), spread.contiguous(), 8, size, palette=numbers_of(E4M3)
    )


def float4_matrix(packed: torch.Tensor, scales: torch.Tensor, columns: int) -> PackedMatrix:
    """Return a weight of numbers E2M1, ``[outputs, inputs]``.

    Args:
        packed: uint8, ``[outputs, inputs / 2]``; the first of two codes is in the low bits.
        scales: ``[outputs, groups]``, floating.
        columns: The number of inputs.

    Raises:
        ModelSourceError: If shapes contradict each other.
    """
    return of_stream(packed, scales, 4, columns, palette=numbers_of(E2M1))


def scale_values(scales: torch.Tensor) -> torch.Tensor:
    """Return the values of scales: those in uint8 and E8M0 are exponents of 2 plus 127."""
    if scales.dtype == torch.uint8:
        # torch has no arithmetic for E8M0, and a power of 2 by ``ldexp`` is exact.
        return torch.ldexp(torch.ones(scales.shape), scales.int() - _BIAS)
    # Scales in 16 bits stay: in float32 the file would be larger, and the values the same.
    wide = scales.dtype in (torch.float16, torch.bfloat16, torch.float32)
    return scales if wide else scales.float()


def _block(
    scales: torch.Tensor, shape: torch.Size, blocks: Sequence[int] | None
) -> tuple[int, int]:
    """Return the numbers of rows and columns of a block."""
    counts = tuple(scales.shape)
    if blocks is not None:
        size = (int(blocks[0]), int(blocks[1]))
    else:
        size = (shape[0] // max(1, counts[0]), shape[1] // max(1, counts[1]))
    if min(size) < 1 or counts != tuple(-(-n // k) for n, k in zip(shape, size, strict=True)):
        raise ModelSourceError(
            f"scales must have an element for each block of a weight {list(shape)}, got "
            f"{list(counts)}"
        )
    return size


_MXFP4 = FORMATS["mxfp4"]
check = partial(check_settings, "MXFP4", allowed=COMMON)


def read(
    tensors: Checkpoint, path: str, settings: Mapping[str, Any], shape: tuple[int, int]
) -> LayerWeight | None:
    """Return the weight of all experts of a layer; None if it is in floating point."""
    del settings
    codes = tensors.get(f"{path}_blocks")
    if codes is None:
        return None
    exponents = tensors[f"{path}_scales"]
    outputs, columns = shape
    groups = (outputs, columns // _MXFP4.group_size)
    size = _MXFP4.group_size * _MXFP4.bits // 8
    if tuple(codes.shape[1:]) != (*groups, size) or codes.shape[:-1] != exponents.shape:
        raise ModelSourceError(
            f"the tensors must be those of weights {[outputs, columns]}, got blocks "
            f"{list(codes.shape)} and scales {list(exponents.shape)}"
        )
    palette = numbers_of(_MXFP4.numbers)
    return LayerWeight(PackedMatrix(codes, scale_values(exponents), _MXFP4.bits, palette=palette))
