"""The formats of AutoRound: the layouts of GPTQ and AWQ, under the name ``auto-round``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints import awq, gptq
from coreai_onnx.huggingface.checkpoints.packed_matrices import LayerWeight
from coreai_onnx.huggingface.checkpoints.settings import COMMON, Checkpoint, check_settings, matches

_LAYOUTS = {
    "auto_round": "gptq_v2",
    "auto_round:gptqmodel": "gptq_v2",
    "auto_round:gptq": "gptq",
    "auto_round:auto_gptq": "gptq",
    "auto_round:awq": "awq",
    "auto_round:auto_awq": "awq",
}
_LAYER_SETTINGS = frozenset({"bits", "group_size", "sym", "data_type", "act_bits"})
_SEARCH = frozenset(
    # Of the search for codes, and of activations, which 16 bits leave as they are.
    "act_group_size act_sym act_dynamic act_data_type super_bits super_group_size iters lr "
    "minmax_lr nsamples seqlen batch_size gradient_accumulate_steps low_gpu_mem_usage "
    "enable_quanted_input enable_minmax_tuning enable_norm_bias_tuning dataset amp seed "
    "scale_dtype low_cpu_mem_usage autoround_version block_name_to_quantize to_quant_block_names "
    "quant_block_list backend supported_types static_kv_dtype model_free is_mx_fp".split()
)
_KNOWN = COMMON | _LAYER_SETTINGS | _SEARCH | frozenset({"packing_format", "extra_config"})
_FLOAT_BITS = 16


def check(settings: Mapping[str, Any]) -> None:
    """Check the settings of a checkpoint."""
    check_settings("AutoRound", settings, _KNOWN)
    layout = settings.get("packing_format")
    if layout not in _LAYOUTS:
        raise ModelSourceError(
            f"AutoRound: packing_format {layout!r} must be one of {', '.join(_LAYOUTS)}"
        )
    for pattern, layer in (settings.get("extra_config") or {}).items():
        check_settings(f"AutoRound, extra_config[{pattern!r}]", layer, _LAYER_SETTINGS | _SEARCH)
        # A pattern that is not valid must fail here, and not in the middle of the weights.
        matches(pattern, "")
        # A layer may override the dtype of all layers.
        _check_layer({**settings, **layer})
    _check_layer(settings)


def read(
    tensors: Checkpoint, path: str, settings: Mapping[str, Any], shape: tuple[int, int]
) -> LayerWeight | None:
    """Return the weight of a linear layer; None if it is in floating point."""
    layer = _of_layer(settings, path)
    layout = _LAYOUTS[settings["packing_format"]]
    described = {"bits": layer.get("bits", 4), "group_size": layer.get("group_size", 128)}
    # The codes are packed as the two libraries do, so that their readers serve.
    if layout == "awq":
        return awq.read(tensors, path, described, shape)
    return gptq.read(tensors, path, {**described, "checkpoint_format": layout}, shape)


def _of_layer(settings: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return the settings of a layer: its own path precedes expressions."""
    extra: Mapping[str, Any] = settings.get("extra_config") or {}
    patterns = [name for name in extra if name == path or matches(name, path)]
    chosen = path if path in extra else next(iter(patterns), None)
    return settings if chosen is None else {**settings, **extra[chosen]}


def _check_layer(settings: Mapping[str, Any]) -> None:
    kind, inputs = settings.get("data_type") or "int", settings.get("act_bits") or _FLOAT_BITS
    if not str(kind).startswith("int") or inputs < _FLOAT_BITS:
        raise ModelSourceError(
            f"AutoRound: weights of {kind!r} with inputs of {inputs} bits are not supported, only "
            f"integers with inputs of {_FLOAT_BITS} bits"
        )
