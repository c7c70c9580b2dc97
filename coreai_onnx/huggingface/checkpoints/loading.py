"""Loads checkpoints that are quantized, or larger than memory.

Quantized linear layers and experts become modules with packed weights.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import Conv1D

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.export.deferred import defer, deferred_source
from coreai_onnx.huggingface.checkpoints import (
    auto_round,
    awq,
    bitsandbytes,
    compressed_tensors,
    float8,
    gptq,
    hqq,
    modelopt,
    quanto,
)
from coreai_onnx.huggingface.checkpoints import float_codes as mxfp4
from coreai_onnx.huggingface.checkpoints.byte_linear import IntegerLinear, multiplies_integers
from coreai_onnx.huggingface.checkpoints.experts import PackedExperts, stacked
from coreai_onnx.huggingface.checkpoints.names import WeightNames
from coreai_onnx.huggingface.checkpoints.packed_matrices import (
    CheckpointLayer,
    LayerWeight,
    PackedLinear,
)
from coreai_onnx.huggingface.checkpoints.settings import Checkpoint
from coreai_onnx.huggingface.transformers_names import model_of_config, no_init_weights
from coreai_onnx.model.files.mapped_tensors import memory_bytes

Settings = Mapping[str, Any]


class Method(NamedTuple):
    """A format of checkpoints.

    Attributes:
        check: Raises a `ModelSourceError` for settings that are not supported.
        read: Returns the weight of a linear layer, given the checkpoint, the path of the layer in
            it, the settings, and outputs and inputs; None if it is in floating point. Raises a
            `ModelSourceError` if a tensor is missing, or does not fit the settings or the shape.
    """

    check: Callable[[Settings], None]
    read: Callable[[Checkpoint, str, Settings, tuple[int, int]], LayerWeight | None]


METHODS: Mapping[str, Method] = {
    "compressed-tensors": Method(compressed_tensors.check, compressed_tensors.read),
    "gptq": Method(gptq.check, gptq.read),
    "awq": Method(awq.check, awq.read),
    "bitsandbytes": Method(bitsandbytes.check, bitsandbytes.read),
    "mxfp4": Method(mxfp4.check, mxfp4.read),
    "fp8": Method(float8.check, float8.read),
    "fbgemm_fp8": Method(float8.check, float8.read),
    "auto-round": Method(auto_round.check, auto_round.read),
    "hqq": Method(hqq.check, hqq.read),
    "modelopt": Method(modelopt.check, modelopt.read),
    quanto.METHOD: Method(quanto.check, quanto.read),
}
"""How each ``quant_method`` of a configuration is read."""
OTHERS = ("torchao",)
"""Methods whose weights transformers itself loads on a CPU, as tensor subclasses."""
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_SHOWN = 3
_PARTS = re.compile(r"scale|zero_point|qzeros|absmax|codebook|packed|qweight|_blocks")
"""WeightNames of tensors that are a part of a quantized value."""


def quantization_of(config: Any, folder: Path) -> Settings | None:
    """Return how a checkpoint is quantized; None if it is not, or if transformers loads it.

    Args:
        config: The configuration of the model.
        folder: Its folder.

    Raises:
        ModelSourceError: If the method or a setting is unsupported.
    """
    settings = getattr(config, "quantization_config", None) or quanto.settings_of(folder)
    if settings is None:
        return None
    settings = settings if isinstance(settings, Mapping) else settings.to_dict()
    method = str(settings.get("quant_method"))
    if method in OTHERS:
        return None
    if method not in METHODS:
        raise ModelSourceError(
            f"quant_method {method!r} in quantization_config must be one of "
            f"{', '.join((*METHODS, *OTHERS))}\n"
            "  load the model with its weights dequantized and give the model object"
        )
    METHODS[method].check(settings)
    return settings


def load_quantized(
    folder: Path,
    config: Any,
    settings: Settings,
    build: Callable[[Any], Any],
    dtype: torch.dtype,
) -> Any:
    """Load a model whose linear layers and experts keep the packed weights of the checkpoint.

    Args:
        folder: The folder of the model.
        config: Its configuration; not changed.
        settings: Its ``quantization_config``.
        build: Builds the model of a configuration; its weights are not initialized.
        dtype: The dtype of all other weights.

    Raises:
        ModelSourceError: If a tensor is missing or not used, or its format is unsupported; the
            message names the layer.
    """
    # A copy without the quantization: transformers would replace the layers by those of its own,
    # most of which need a GPU.
    plain = type(config).from_dict(config.to_dict())
    if hasattr(plain, "quantization_config"):
        del plain.quantization_config
    # Every weight is overwritten: random numbers would be drawn for nothing.
    with no_init_weights():
        model = build(plain).to(dtype)
    tensors = Checkpoint.of(folder)
    names = WeightNames(model, tensors)
    loader = _Loader(tensors, names, settings, dtype)
    layers = {
        path: layer
        for path, module in model.named_modules()
        if (layer := loader.layer(path, module)) is not None
    }
    experts = loader.experts(model)
    replaced = [f"{path}." for path in layers]
    packed = {f"{path}.{name}" for path, weights in experts.items() for name in weights}
    unpacked = {
        name: weight
        for name, weight in model.state_dict(keep_vars=True).items()
        if name not in packed and not name.startswith(tuple(replaced))
    }
    _fill(unpacked, loader, tied=set(getattr(model, "all_tied_weights_keys", None) or ()))
    # Before the layers are replaced: the check looks for modules by the paths that transformers
    # gives them.
    _check_unread(model, names, tensors)
    for path, layer in layers.items():
        model.set_submodule(path, layer)
    for path, weights in experts.items():
        matrices = {name: [weight] for name, weight in weights.items()}
        model.set_submodule(path, PackedExperts(model.get_submodule(path), matrices))
    # Replaced modules and copied values have broken the ties between embeddings and heads.
    model.tie_weights()
    return model


class _Loader(NamedTuple):
    """Reads the weights of modules."""

    tensors: Checkpoint
    names: WeightNames
    settings: Settings
    dtype: torch.dtype

    def layer(self, path: str, module: Any) -> CheckpointLayer | None:
        """Return the layer that replaces a module; None if it is not packed."""
        source = self.names.layers.get(path)
        # Conv1D of GPT-2 is a linear layer that stores its weight transposed.
        if source is None or not isinstance(module, torch.nn.Linear | Conv1D):
            return None
        shape = tuple(module.weight.shape)
        weight = self._read(source, (shape[1], shape[0]) if isinstance(module, Conv1D) else shape)
        if weight is None:
            return None
        matrix, rounding = weight
        matrix = matrix.on_disk()
        layer: CheckpointLayer = PackedLinear(matrix, rounding=rounding)
        if rounding is not None and multiplies_integers(matrix, rounding):
            layer = IntegerLinear(matrix, rounding)
        layer.hold("bias", None)
        if module.bias is not None:
            layer.hold("bias", self.tensors[f"{source}.bias"].to(self.dtype))
        return layer

    def experts(self, model: Any) -> dict[str, dict[str, LayerWeight]]:
        """Return the packed weights of experts, by the path of the module and their names."""
        packed: dict[str, dict[str, LayerWeight]] = {}
        for path, module in model.named_modules():
            # The experts interface of transformers sets this attribute on all of its modules.
            if not hasattr(module, "is_transposed"):
                continue
            for attribute, parameter in module.named_parameters(recurse=False):
                if parameter.dim() != 3:  # a bias
                    continue
                name = f"{path}.{attribute}"
                weight = self._expert(module, name, tuple(parameter.shape))
                if weight is not None:
                    packed.setdefault(path, {})[attribute] = weight
        return packed

    def _expert(self, experts: Any, name: str, shape: tuple[int, ...]) -> LayerWeight | None:
        """Return the packed weight of experts; None if it is not packed."""
        count, *sizes = shape
        outputs, columns = sizes[::-1] if experts.is_transposed else sizes
        whole, parts = self.names.layers.get(name), self.names.experts.get(name, [])
        if whole is not None:
            return self._read(whole, (outputs, columns))
        # Files of an incomplete download lack some of the experts.
        if parts and (len(parts) != count or len({len(sources) for sources in parts}) > 1):
            raise ModelSourceError(f"{name}: the checkpoint has only some of {count} experts")
        read = [
            # Gate and up projections are separate in most files, and below each other in the model.
            [self._read(source, (outputs // len(sources), columns)) for source in sources]
            for sources in parts
        ]
        quantized = [[weight for weight in one if weight is not None] for one in read]
        if not any(quantized):
            return None
        with _named(name):
            if any(len(one) != len(parts[0]) for one in quantized):
                raise ModelSourceError(f"only some of {count} experts have quantized weights")
            return stacked(quantized)

    def floats(self, name: str) -> torch.Tensor | None:
        """Return a weight in floating point; None if the checkpoint does not have it."""
        if name in self.names.tensors:
            return self.tensors[self.names.tensors[name]]
        experts = self.names.experts.get(name)
        if experts is None:
            return None
        return torch.stack(
            [torch.cat([self.tensors[f"{source}.weight"] for source in one]) for one in experts]
        )

    def _read(self, source: str, shape: tuple[int, int]) -> LayerWeight | None:
        with _named(source):
            read = METHODS[self.settings["quant_method"]].read
            return read(self.tensors, source, self.settings, shape)


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Add the path of a layer to errors."""
    try:
        yield
    except ModelSourceError as error:
        raise ModelSourceError(f"{path}: {error.args[0]}") from error


def _fill(weights: Mapping[str, torch.Tensor], loader: _Loader, tied: Collection[str]) -> None:
    """Copy all weights that are not packed."""
    missing = []
    for name, target in weights.items():
        value = loader.floats(name)
        if value is None:
            # A tied weight is in the file under the name of the other one.
            missing += [] if name in tied else [name]
            continue
        if value.shape != target.shape:
            raise ModelSourceError(
                f"{name} is {list(value.shape)} in the checkpoint, "
                f"{list(target.shape)} in the model"
            )
        # ``copy_`` would convert codes to floats without their scales, and no error would show it.
        if target.dtype.is_floating_point and value.dtype not in _FLOATS:
            raise ModelSourceError(
                f"{name} is {value.dtype} in the checkpoint: the codes of a weight that is "
                "neither of a linear layer nor of experts"
            )
        target.data.copy_(value)
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise ModelSourceError(f"the checkpoint has no {', '.join(missing[:_SHOWN])}{more}")


def _check_unread(model: Any, names: WeightNames, tensors: Checkpoint) -> None:
    """Check that no tensor of this model with a part of a quantized value was ignored."""
    paths = {path for path, _ in model.named_modules()}
    for renamed, name in names.tensors.items():
        path, _, attribute = renamed.rpartition(".")
        # Files may also hold parts that this model does not have, such as those for speculative
        # decoding.
        if name in tensors.unread and path in paths and _PARTS.search(attribute):
            raise ModelSourceError(
                f"the checkpoint has {name}, which is not supported\n"
                "  if it does not change what the model computes, remove it"
            )


MEMORY_SHARE = 0.5
"""The share of the memory that the weights of a model may take; those of a larger one stay in its
files, and are read one at a time when the result is written."""
SMALL = 1 << 16
"""Elements of a parameter that is in memory in any case."""


def exceeds_memory(folder: Path, config: Any, dtype: torch.dtype) -> bool:
    """Whether the weights of a folder would take more than `MEMORY_SHARE` as ``dtype``."""
    patterns = ("*.safetensors", "pytorch_model*.bin")
    size = sum(file.stat().st_size for pattern in patterns for file in folder.glob(pattern))
    stored = config.dtype or torch.float32
    return size * dtype.itemsize // stored.itemsize > MEMORY_SHARE * memory_bytes()


def deferred(mapped: Any, build: Callable[[Any], Any], dtype: torch.dtype) -> Any:
    """Return a model in a dtype whose large parameters have the values of a mapped model.

    Args:
        mapped: The model in the dtype of its files.
        build: As for `load_quantized`.
        dtype: The dtype of the result.
    """
    config = copy.deepcopy(mapped.config)
    config.dtype = dtype
    # Memory of weights that nothing writes to is never resident.
    with no_init_weights():
        model = build(config)  # not ``to(dtype)``, which would convert buffers as well
    model.tie_weights()
    sources = mapped.state_dict(keep_vars=True)
    for name, target in model.state_dict(keep_vars=True).items():
        source = sources[name].data
        if source.dtype == target.dtype:
            target.data = source
        elif source.dim() > 1 and source.numel() > SMALL:
            defer(target, source)
        else:
            target.data.copy_(source)
    if model.can_generate():
        model.generation_config = mapped.generation_config
    return model


def first_layers(model: Any) -> tuple[Any, int] | None:
    """Return the first layers of a `deferred` model as a model in memory, and their number.

    None if `MEMORY_SHARE` does not hold one layer, or a model of fewer layers has other weights.
    """
    build = functools.partial(model_of_config, type(model))
    with torch.device("meta"):
        one, two = (_elements(build(_shortened(model.config, layers))) for layers in (1, 2))
    room = int(MEMORY_SHARE * memory_bytes()) // model.dtype.itemsize - one
    if room < 0 or one == two:
        return None
    total = model.config.get_text_config(decoder=True).num_hidden_layers
    layers = min(1 + room // (two - one), total)
    with no_init_weights():
        part: Any = build(_shortened(model.config, layers))
    part.tie_weights()
    values = model.state_dict(keep_vars=True)
    for name, target in part.state_dict(keep_vars=True).items():
        if name not in values or values[name].shape != target.shape:
            return None
        source = deferred_source(values[name])
        target.data.copy_(values[name] if source is None else source)
    return part.eval(), layers


def _elements(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _shortened(config: Any, layers: int) -> Any:
    """Return a copy of a configuration for the first layers."""
    copied = copy.deepcopy(config)
    text = copied.get_text_config(decoder=True)
    total = text.num_hidden_layers
    for name, value in vars(text).items():
        if isinstance(value, list) and len(value) == total:
            setattr(text, name, value[:layers])
    text.num_hidden_layers = layers
    return copied
