"""The format of GPTQ (AutoGPTQ, GPTQModel).

``qweight`` is ``[inputs * bits / 32, outputs]``, a bit stream down each column; ``qzeros`` is
``[groups, outputs * bits / 32]``, of zero points minus 1, except in the format ``gptq_v2``;
``scales`` is ``[groups, outputs]``; ``g_idx`` has the group of each input. Words are int32, or the
integers that ``pack_dtype`` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints.packed_matrices import (
    LayerWeight,
    check_bits,
    of_stream,
    unpacked_rows,
)
from coreai_onnx.huggingface.checkpoints.settings import COMMON, Checkpoint, check_settings, matches

_FORMATS = ("gptq", "gptq_v2")
_LAYER_SETTINGS = frozenset({"bits", "group_size", "sym", "desc_act"})
_SEARCH = frozenset(
    "damp_percent damp_auto_increment static_groups true_sequential mse act_group_aware gptaq foem "
    "hessian fallback mock_quantization".split()
)
"""Settings of the search for codes."""
_KNOWN = (
    COMMON
    | _LAYER_SETTINGS
    | _SEARCH
    | frozenset("method format checkpoint_format dynamic meta lm_head pack_dtype".split())
    # Names of models, calibration data, kernels of the library.
    | frozenset(
        "model_name_or_path model_file_base_name dataset tokenizer batch_size backend use_exllama "
        "disable_exllama use_cuda_fp16 exllama_config max_input_length model_seqlen pad_token_id "
        "block_name_to_quantize module_name_preceding_first_block modules_in_block_to_quantize "
        "cache_block_outputs quantizer uri".split()
    )
)
_WRITER = "gptqmodel"


def check(settings: Mapping[str, Any]) -> None:
    """Check the settings of a checkpoint."""
    check_settings("GPTQ", settings, _KNOWN)
    form = _format(settings)
    if form not in _FORMATS:
        raise ModelSourceError(
            f"GPTQ: the format must be one of {', '.join(_FORMATS)}, got {form!r}"
        )
    check_bits(settings.get("bits"))
    for pattern, overrides in _overrides(settings):
        check_settings(f"GPTQ, dynamic[{pattern!r}]", overrides, _LAYER_SETTINGS | _SEARCH)
        # A pattern that is not valid must fail here, and not in the middle of the weights.
        matches(_expression(pattern), "")


def read(
    tensors: Checkpoint, path: str, settings: Mapping[str, Any], shape: tuple[int, int]
) -> LayerWeight | None:
    """Return the weight of a linear layer; None if it is in floating point."""
    packed = tensors.get(f"{path}.qweight")
    if packed is None:
        return None
    layer = _of_layer(settings, path)
    bits, (outputs, columns) = check_bits(layer.get("bits")), shape
    groups = tensors.get(f"{path}.g_idx")
    # With desc_act, neighbors belong to different groups: without g_idx, all scales would be wrong.
    if layer.get("desc_act") and groups is None:
        raise ModelSourceError(f"desc_act needs the tensor {path}.g_idx, which is missing")
    scales = tensors[f"{path}.scales"].T.contiguous()
    zeros = _zero_points(tensors[f"{path}.qzeros"], bits, outputs, settings)
    size = layer.get("group_size")
    matrix = of_stream(
        packed.T, scales, bits, columns, size, zero_points=zeros.T.contiguous(), groups=groups
    )
    return LayerWeight(matrix)


def _of_layer(settings: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return the settings of a layer: those of the first pattern of ``dynamic`` that matches."""
    for pattern, overrides in _overrides(settings):
        if matches(_expression(pattern), path):
            # In GPTQModel, "-:" excludes layers from the quantization.
            if pattern.startswith("-:"):
                raise ModelSourceError(f"dynamic[{pattern!r}] excludes the layer, but it has codes")
            return {**settings, **overrides}
    return settings


def _overrides(settings: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(name, values or {}) for name, values in (settings.get("dynamic") or {}).items()]


def _expression(pattern: str) -> str:
    return pattern[2:] if pattern.startswith(("+:", "-:")) else pattern


def _zero_points(
    words: torch.Tensor, bits: int, outputs: int, settings: Mapping[str, Any]
) -> torch.Tensor:
    """Return zero points, ``[groups, outputs]``.

    The format ``gptq`` stores them minus 1. GPTQModel subtracts 1 from all codes of a word at once,
    so that a zero point of 0 borrows from the next one; the sum gives all of them back. Others
    subtract it from each code, modulo ``2 ** bits``.
    """
    if _format(settings) == "gptq_v2":
        return unpacked_rows(words, bits, outputs)
    width = words.element_size() * 8
    # For 3 bits, whose codes cross words, there is no such constant.
    if _is_of_gptqmodel(settings) and width % bits == 0 and not words.dtype.is_floating_point:
        # Added to whole words, so that a carry undoes the borrow.
        ones = sum(1 << place for place in range(0, width, bits))
        return unpacked_rows(words + ones, bits, outputs)
    return (unpacked_rows(words, bits, outputs) + 1) & ((1 << bits) - 1)


def _is_of_gptqmodel(settings: Mapping[str, Any]) -> bool:
    writers = (settings.get("meta") or {}).get("quantizer") or ()
    writers = [writers] if isinstance(writers, str) else writers
    return any(str(writer).lower().startswith(_WRITER) for writer in writers)


def _format(settings: Mapping[str, Any]) -> str:
    name = settings.get("checkpoint_format") or settings.get("format") or _FORMATS[0]
    return str(name).lower()
