"""Loads quantized checkpoints: linear layers become layers with packed weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers.initialization import no_init_weights

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.checkpoints import awq, bitsandbytes, compressed_tensors, gptq, mxfp4
from coreai_onnx.huggingface.checkpoints.packed_matrices import (
    CheckpointLayer,
    PackedLinear,
    PackedMatrix,
)
from coreai_onnx.huggingface.checkpoints.tensors import Checkpoint

Read = Callable[
    [Checkpoint, str, Mapping[str, Any], tuple[int, int]], PackedMatrix | CheckpointLayer | None
]
METHODS: Mapping[str, Read | None] = {
    "compressed-tensors": compressed_tensors.read,
    "gptq": gptq.read,
    "awq": awq.read,
    "bitsandbytes": bitsandbytes.read,
    "mxfp4": None,  # only its experts are packed
}
"""How each ``quant_method`` of a configuration is read."""
OTHERS = ("torchao",)
"""Methods whose weights transformers itself loads on a CPU, as tensor subclasses."""
_SHOWN = 3


def quantization_of(config: Any) -> Mapping[str, Any] | None:
    """Return how a checkpoint is quantized; None if it is not, or if transformers loads it.

    Raises:
        ModelSourceError: If the method is unknown.
    """
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        return None
    settings = settings if isinstance(settings, Mapping) else settings.to_dict()
    method = settings.get("quant_method")
    if method in OTHERS:
        return None
    if method not in METHODS:
        raise ModelSourceError(
            f"quant_method {method!r} in quantization_config is none of "
            f"{', '.join((*METHODS, *OTHERS))}\n"
            "  load the model with its weights dequantized and give the model object"
        )
    return settings


def load_quantized(
    folder: Path,
    config: Any,
    settings: Mapping[str, Any],
    build: Callable[[Any], Any],
    dtype: torch.dtype,
) -> Any:
    """Load a model whose linear layers keep the packed weights of the checkpoint.

    Args:
        folder: The folder of the model.
        config: Its configuration; not changed.
        settings: Its ``quantization_config``.
        build: Builds the model of a configuration; its weights are not initialized.
        dtype: The dtype of all other weights.

    Raises:
        ModelSourceError: If a tensor is missing, or its format is unsupported; the message names
            the layer.
    """
    plain = type(config).from_dict(config.to_dict())
    if hasattr(plain, "quantization_config"):
        del plain.quantization_config
    with no_init_weights():
        model = build(plain).to(dtype)
    tensors = Checkpoint.of(folder)
    own = f"{model.base_model_prefix}."
    if not any(name in tensors for name in model.state_dict()) and own != ".":
        tensors = tensors.within(own)
    for path, module in list(model.named_modules()):
        made = _packed(tensors, path, module, settings, dtype)
        if made is not None:
            model.set_submodule(path, made)
    _fill(model, tensors)
    model.tie_weights()
    return model


def _packed(
    tensors: Checkpoint, path: str, module: Any, settings: Mapping[str, Any], dtype: torch.dtype
) -> torch.nn.Module | None:
    """Return the layer that replaces a module, or None."""
    read = METHODS[settings["quant_method"]]
    if read is None:
        blocks = f"{path}.{mxfp4.PROJECTIONS[0]}_blocks"
        return mxfp4.PackedExperts(tensors, path, module) if blocks in tensors else None
    if not isinstance(module, torch.nn.Linear):
        return None
    try:
        weight = read(tensors, path, settings, (module.out_features, module.in_features))
    except ModelSourceError as error:
        raise ModelSourceError(f"{path}: {error}") from error
    if weight is None:
        return None
    layer = PackedLinear(weight) if isinstance(weight, PackedMatrix) else weight
    layer.hold("bias", None if module.bias is None else tensors[f"{path}.bias"].to(dtype))
    return layer


def _fill(model: Any, tensors: Checkpoint) -> None:
    """Copy all weights that are not packed.

    Raises:
        ModelSourceError: If some are missing, or have another shape.
    """
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    missing = []
    for name, target in _unpacked(model):
        if name not in tensors:
            missing += [] if name in tied else [name]
            continue
        given = tensors[name]
        if given.shape != target.shape:
            raise ModelSourceError(
                f"{name} is {list(given.shape)} in the checkpoint, "
                f"{list(target.shape)} in the model"
            )
        target.data.copy_(given)
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise ModelSourceError(f"the checkpoint has no {', '.join(missing[:_SHOWN])}{more}")


def _unpacked(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights and persistent buffers outside of packed layers."""
    packed = [
        f"{path}."
        for path, module in model.named_modules()
        if isinstance(module, CheckpointLayer | mxfp4.PackedExperts)
    ]
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not name.startswith(tuple(packed)):
            yield name, tensor
