"""The format ``compressed-tensors`` of llm-compressor, packed: ``pack-quantized``.

``weight_packed`` is int32 ``[outputs, inputs * bits / 32]``, with ``2 ** (bits - 1)`` added to each
code; ``weight_scale`` is ``[outputs, groups]``; ``weight_zero_point`` is packed along the outputs;
``weight_g_idx`` has the group of each input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.packed_matrices import (
    PackedMatrix,
    packed_rows,
    unpacked_rows,
)
from coreai_onnx.huggingface.checkpoints.tensors import Checkpoint

_FORMAT = "pack-quantized"


def read(
    tensors: Checkpoint, path: str, settings: Mapping[str, Any], shape: tuple[int, int]
) -> PackedMatrix | None:
    """Return the weight of a linear layer; None if the checkpoint has it in floating point.

    Raises:
        ModelSourceError: If the format is another one, or activations are quantized too.
    """
    _check(settings)
    packed = tensors.get(f"{path}.weight_packed")
    if packed is None:
        return None
    outputs, columns = shape
    scales = tensors[f"{path}.weight_scale"]
    bits = _bits(packed.shape[1], columns)
    weight = PackedMatrix(packed_rows(packed, scales, bits, columns), scales, bits)
    zeros = tensors.get(f"{path}.weight_zero_point")
    if zeros is not None:
        zeros = unpacked_rows(zeros.T, bits, outputs).T.contiguous()
        weight = PackedMatrix(weight.codes, scales, bits, zeros)
    return weight.sorted_by(tensors.get(f"{path}.weight_g_idx"))


def _bits(words: int, columns: int) -> int:
    """Return the size of a code, which may differ from layer to layer."""
    fitting = [bits for bits in (8, 4, 2) if words == -(-columns // (32 // bits))]
    if not fitting:
        raise ModelSourceError(f"{words} words for {columns} inputs are not of 8, 4 or 2 bits")
    return fitting[0]


def _check(settings: Mapping[str, Any]) -> None:
    given = settings.get("format")
    if given != _FORMAT:
        raise ModelSourceError(f"compressed-tensors in the format {given!r}, not {_FORMAT!r}")
    groups: Mapping[str, Any] = settings.get("config_groups") or {}
    if any(group.get("input_activations") for group in groups.values()):
        raise ModelSourceError("compressed-tensors with quantized activations is not supported")
