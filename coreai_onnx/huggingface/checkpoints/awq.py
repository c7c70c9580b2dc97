"""The format of AWQ (AutoAWQ, version ``gemm``), of 4 bits.

``qweight`` is int32 ``[inputs, outputs / 8]``, ``qzeros`` is ``[groups, outputs / 8]``; the eight
codes of a word are those of the outputs 0, 2, 4, 6, 1, 3, 5, 7; ``scales`` is
``[groups, outputs]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.packed_matrices import (
    PackedMatrix,
    packed_rows,
    unpacked_rows,
)
from coreai_onnx.huggingface.checkpoints.tensors import Checkpoint
from coreai_onnx.model.packed_codes import pack_codes

_BITS = 4
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place in a word of each of eight outputs."""


def read(
    tensors: Checkpoint, path: str, settings: Mapping[str, Any], shape: tuple[int, int]
) -> PackedMatrix | None:
    """Return the weight of a linear layer; None if the checkpoint has it in floating point.

    Raises:
        ModelSourceError: If the version is another one, or the weights have not 4 bits.
    """
    version, bits = str(settings.get("version", "gemm")).lower(), settings.get("bits", _BITS)
    if version != "gemm" or bits != _BITS:
        raise ModelSourceError(f"AWQ {version!r} with {bits} bits, not 'gemm' with {_BITS}")
    packed = tensors.get(f"{path}.qweight")
    if packed is None:
        return None
    outputs, columns = shape
    scales = tensors[f"{path}.scales"].T.contiguous()
    rows = pack_codes(_unpacked(packed, outputs).T.numpy(), _BITS)
    codes = packed_rows(torch.from_numpy(rows), scales, _BITS, columns)
    zeros = tensors.get(f"{path}.qzeros")
    known = None if zeros is None else _unpacked(zeros, outputs).T.contiguous()
    return PackedMatrix(codes, scales, _BITS, known)


def _unpacked(words: torch.Tensor, columns: int) -> torch.Tensor:
    """Return the codes of words in the order of the outputs, uint8 ``[rows, columns]``."""
    codes = unpacked_rows(words, _BITS, columns)
    words_of_codes: torch.Tensor = codes.unflatten(1, (-1, len(_PLACES)))
    return words_of_codes[..., list(_PLACES)].flatten(1)
