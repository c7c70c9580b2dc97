"""The formats of NVIDIA's ModelOpt: ``FP8``, ``NVFP4``, and ``NVFP4_AWQ`` without its scales.

``FP8``: ``weight`` is float8, ``weight_scale`` has one element. ``NVFP4``: ``weight`` is uint8
``[outputs, inputs / 2]``, two numbers E2M1 with the first in the low bits; ``weight_scale`` is
float8 ``[outputs, inputs / 16]``, and is multiplied by ``weight_scale_2``, one element.
``input_scale`` is the static scale of the inputs; those of NVFP4 have dynamic ones for groups too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.float_codes import (
    float4_matrix,
    float8_matrix,
    scale_values,
)
from coreai_onnx.huggingface.checkpoints.packed_matrices import LayerWeight
from coreai_onnx.huggingface.checkpoints.rounded_activations import ActivationScheme, Rounding
from coreai_onnx.huggingface.checkpoints.settings import COMMON, Checkpoint, check_settings
from coreai_onnx.model.weight_formats import FORMATS

_ALGORITHMS = ("FP8", "NVFP4")
_KNOWN = COMMON | frozenset(
    # The groups describe the tensors again, and say which layers have them.
    "quant_algo producer ignore exclude_modules group_size config_groups".split()
)
_FLOAT8 = ActivationScheme(
    dynamic=False, strategy="tensor", group_size=0, symmetric=True, is_float=True
)
_NVFP4 = ActivationScheme(
    dynamic=True,
    strategy="tensor_group",
    group_size=FORMATS["nvfp4"].group_size,
    symmetric=True,
    is_float=True,
    bits=4,
)


def check(settings: Mapping[str, Any]) -> None:
    """Check the settings of a checkpoint."""
    check_settings("ModelOpt", settings, _KNOWN)
    algorithm = settings.get("quant_algo")
    if algorithm not in _ALGORITHMS:
        raise ModelSourceError(
            f"ModelOpt: quant_algo {algorithm!r} must be one of {', '.join(_ALGORITHMS)}"
        )


def read(
    tensors: Checkpoint, path: str, settings: Mapping[str, Any], shape: tuple[int, int]
) -> LayerWeight | None:
    """Return the weight of a linear layer; None if it is in floating point."""
    stored = tensors.get(f"{path}.weight_scale")
    if stored is None:
        return None
    weight, scales = tensors[f"{path}.weight"], scale_values(stored)
    inputs = tensors.get(f"{path}.input_scale")
    if settings["quant_algo"] == "FP8":
        rounding = None if inputs is None else Rounding(_FLOAT8, inputs, None)
        return LayerWeight(float8_matrix(weight, scales), rounding)
    # In float32: the product of a float8 and the scale of the tensor does not fit 8 bits.
    scales = scales * tensors[f"{path}.weight_scale_2"].float()
    # compressed-tensors, whose rounding this is, has the reciprocal of ModelOpt's scale.
    rounding = None if inputs is None else Rounding(_NVFP4, None, None, 1 / inputs.float())
    return LayerWeight(float4_matrix(weight, scales, shape[1]), rounding)
