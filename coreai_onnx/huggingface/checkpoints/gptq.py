"""The format of GPTQ (AutoGPTQ, GPTQModel).

``qweight`` is int32 ``[inputs * bits / 32, outputs]``, a bit stream down each column; ``qzeros`` is
``[groups, outputs * bits / 32]``, of zero points minus 1, except in the format ``gptq_v2``;
``scales`` is ``[groups, outputs]``; ``g_idx`` has the group of each input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.packed_matrices import (
    PackedMatrix,
    check_bits,
    packed_rows,
    unpacked_rows,
)
from coreai_onnx.huggingface.checkpoints.tensors import Checkpoint

_OFFSETS = {"gptq": 1, "gptq_v2": 0}
"""What is added to stored zero points."""


def read(
    tensors: Checkpoint, path: str, settings: Mapping[str, Any], shape: tuple[int, int]
) -> PackedMatrix | None:
    """Return the weight of a linear layer; None if the checkpoint has it in floating point.

    Raises:
        ModelSourceError: If the format is another one, or the size of a code is unsupported.
    """
    given = settings.get("checkpoint_format", "gptq")
    if given not in _OFFSETS:
        raise ModelSourceError(f"GPTQ in the format {given!r}, not one of {', '.join(_OFFSETS)}")
    check_bits(settings.get("bits"))
    packed = tensors.get(f"{path}.qweight")
    if packed is None:
        return None
    bits, (outputs, columns) = settings["bits"], shape
    scales = tensors[f"{path}.scales"].T.contiguous()
    zeros = unpacked_rows(tensors[f"{path}.qzeros"], bits, outputs).T + _OFFSETS[given]
    codes = packed_rows(packed.T, scales, bits, columns)
    weight = PackedMatrix(codes, scales, bits, zeros.contiguous())
    return weight.sorted_by(tensors.get(f"{path}.g_idx"))
