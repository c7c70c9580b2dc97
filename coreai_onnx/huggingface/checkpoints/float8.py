"""Checkpoints in float8 (E4M3): ``fp8`` of DeepSeek and others, and ``fbgemm_fp8``.

``weight`` is float8 ``[outputs, inputs]``. The scales of ``fp8`` are ``weight_scale_inv``, one, or
one for each block of ``weight_block_size``; those of ``fbgemm_fp8`` are ``weight_scale``, one for
each output. The kernels of GPUs also round the inputs of layers to float8. They stay as they are
here, which is what transformers computes without a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.experts import stacked
from coreai_onnx.huggingface.checkpoints.float_codes import float8_matrix, scale_values
from coreai_onnx.huggingface.checkpoints.packed_matrices import LayerWeight
from coreai_onnx.huggingface.checkpoints.settings import COMMON, Checkpoint, check_settings

_SCALES = ("weight_scale_inv", "weight_scale", "scale", "qscale_weight")
_OF_INPUTS = ("activation_scale", "input_scale", "input_scale_ub", "qscale_act")
_KNOWN = COMMON | frozenset(
    "activation_scheme activation_scale_ub weight_block_size scale_fmt fmt ignored_layers "
    "expert_dtype".split()
)
_VALUES = {"fmt": ("e4m3",), "scale_fmt": ("float", "ue8m0"), "expert_dtype": ("fp8",)}


def check(settings: Mapping[str, Any]) -> None:
    """Check the settings of a checkpoint."""
    check_settings("float8", settings, _KNOWN)
    for name, values in _VALUES.items():
        if settings.get(name, values[0]) not in values:
            raise ModelSourceError(
                f"float8: {name} = {settings[name]!r} must be one of {', '.join(values)}"
            )


def read(
    tensors: Checkpoint, path: str, settings: Mapping[str, Any], shape: tuple[int, int]
) -> LayerWeight | None:
    """Return the weight of a linear layer or of experts; None if it is in floating point."""
    del shape  # that of the weight
    blocks = settings.get("weight_block_size")
    fused = tensors.get(f"{path}_scale_inv")
    if fused is not None:
        return _of_experts(tensors[path], scale_values(fused), blocks)
    scales = next((f"{path}.{name}" for name in _SCALES if f"{path}.{name}" in tensors), None)
    if scales is None:
        return None
    # Reading marks them as known: they would be reported as tensors that nothing reads.
    for name in _OF_INPUTS:
        tensors.get(f"{path}.{name}")
    weight, factors = tensors[f"{path}.weight"], scale_values(tensors[scales])
    # A layer may have scales for its rows although the settings name blocks for the others.
    whole = factors.numel() == 1 or tuple(factors.shape[:1]) == tuple(weight.shape[:1])
    return LayerWeight(float8_matrix(weight, factors, None if whole else blocks))


def _of_experts(weight: torch.Tensor, scales: torch.Tensor, blocks: Any) -> LayerWeight:
    """Return a weight ``[experts, outputs, inputs]``, with the experts as an axis in front."""
    if weight.dim() != 3 or len(scales) != len(weight):
        raise ModelSourceError(
            "a weight of experts must have three axes, and scales for each expert, got "
            f"{list(weight.shape)} and {list(scales.shape)}"
        )
    experts = zip(weight, scales, strict=True)
    return stacked([[LayerWeight(float8_matrix(*expert, blocks))] for expert in experts])
