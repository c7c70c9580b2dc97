"""The format MXFP4 of GPT-OSS, of experts only.

``…_blocks`` is uint8 ``[experts, outputs, groups, 16]``, 32 numbers E2M1 with the first of two in
the low bits; ``…_scales`` is uint8 ``[experts, outputs, groups]``, exponents plus 127.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.float_codes import FLOAT4, scale_values
from coreai_onnx.huggingface.checkpoints.packed_matrices import LayerWeight, PackedMatrix
from coreai_onnx.huggingface.checkpoints.settings import COMMON, check_settings
from coreai_onnx.huggingface.checkpoints.tensors import Checkpoint

_BYTES = 16


def check(settings: Mapping[str, Any]) -> None:
    """Check the settings of a checkpoint.

    Raises:
        ModelSourceError: If one is unsupported.
    """
    check_settings("MXFP4", settings, COMMON)


def read(
    tensors: Checkpoint, path: str, settings: Mapping[str, Any], shape: tuple[int, int]
) -> LayerWeight | None:
    """Return the weight of all experts of a layer; None if it is in floating point.

    Raises:
        ModelSourceError: If a tensor is missing, or has another shape.
    """
    del settings
    codes = tensors.get(f"{path}_blocks")
    if codes is None:
        return None
    exponents = tensors[f"{path}_scales"]
    outputs, columns = shape
    groups = (outputs, columns // (2 * _BYTES))
    if tuple(codes.shape[1:]) != (*groups, _BYTES) or codes.shape[:-1] != exponents.shape:
        raise ModelSourceError(
            f"blocks {list(codes.shape)} and scales {list(exponents.shape)} are not those of "
            f"weights {[outputs, columns]}"
        )
    palette = torch.tensor(FLOAT4)
    return LayerWeight(PackedMatrix(codes, scale_values(exponents), 4, palette=palette))
