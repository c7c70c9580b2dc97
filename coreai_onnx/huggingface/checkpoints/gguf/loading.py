"""Loads models of transformers from GGUF files; weights of few bits keep their codes.

Configuration, names of tensors and tokenizer are those that transformers derives from the
metadata. What it does to the values of a tensor, such as the order of the rows of queries in Llama,
is done to the numbers of the rows first: where the result is an order of rows, the codes are taken
in it.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import ReaderTensor
from gguf.quants import dequantize

from coreai_onnx.composites.torch_ops import call
from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.checkpoints.experts import PackedExperts
from coreai_onnx.huggingface.checkpoints.gguf.blocks import (
    FLOATS,
    PACKED,
    packed_experts,
    packed_matrix,
)
from coreai_onnx.huggingface.checkpoints.gguf.header import Header, read_header, read_tensors
from coreai_onnx.huggingface.checkpoints.gguf.metadata import query_scalar, tensor_names
from coreai_onnx.huggingface.checkpoints.packed_matrices import (
    CheckpointModule,
    LayerWeight,
    PackedLinear,
    PackedMatrix,
)
from coreai_onnx.huggingface.folders import setting_fault
from coreai_onnx.huggingface.transformers_names import (
    causal_classes,
    load_gguf_checkpoint,
    no_init_weights,
    tokenizer_of_gguf,
)
from coreai_onnx.messages import without_warnings
from coreai_onnx.model.files.saving import Released

_ARCHITECTURE = "general.architecture"
_ROPE_FACTORS = "rope_freqs.weight"
_EXPERTS = re.compile(r"blk\.(\d+)\.ffn_(?:(gate_up|gate|up)|down)_exps\.weight")
_MIXTURES = ("llama", "qwen2moe", "qwen3moe")
"""The architectures that may have experts, whose results were compared with those of llama.cpp."""
_WIDTHS = {"moe_intermediate_size": "_exps", "shared_expert_intermediate_size": "_shexp"}
"""Settings that transformers does not read, and the ends of names of tensors with that width."""
_LAYER = re.compile(r"\bblk\.(\d+)\.")
_SHOWN = 3


def read_config(path: Path) -> Any:
    """Return the configuration of the model in a GGUF file, after a check of the file's header.

    Raises:
        ModelSourceError: If the file is damaged, or transformers does not know its architecture.
    """
    header = read_header(path)
    architecture = header.values.get(_ARCHITECTURE)
    if not isinstance(architecture, str):
        raise ModelSourceError(f"{path}: the metadata has no {_ARCHITECTURE}")
    if header.values.get("split.count", 1) != 1:
        raise ModelSourceError(
            f"{path}: is one of {header.values['split.count']} files of a model\n"
            "  join them with llama-gguf-split --merge"
        )
    _check_types(path, header)
    with (
        failures_as(ModelSourceError, f"{path}: transformers does not read {architecture!r:.40}"),
        without_warnings("transformers.modeling_gguf_pytorch_utils"),
        tempfile.TemporaryDirectory() as folder,
    ):
        (small := Path(folder, path.name)).write_bytes(header.without_vocabulary)
        settings = load_gguf_checkpoint(small)["config"]
    settings.setdefault("vocab_size", header.values.get("tokenizer.ggml.tokens"))
    _check_layers(path, header, architecture)
    scaling = header.values.get(f"{architecture}.rope.scaling.type", "none")
    if scaling == "linear":  # transformers ignores it
        factor = header.values.get(f"{architecture}.rope.scaling.factor")
        settings["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif scaling != "none":
        raise ModelSourceError(f"{path}: positions scaled by {scaling!r:.40} are not supported")
    _set_experts(path, settings, header, architecture)
    # For some architectures transformers expects the width of heads that their first models have.
    if isinstance(width := header.values.get(f"{architecture}.attention.key_length"), int):
        settings.setdefault("head_dim", width)
    if fault := setting_fault(settings):
        raise ModelSourceError(f"{path}: {fault}")
    with failures_as(ModelSourceError, f"{path}: the configuration is not valid"):
        config = transformers.CONFIG_MAPPING[settings["model_type"]].from_dict(settings)
    if architecture == "gemma3":  # the metadata does not have it
        config.query_pre_attn_scalar = query_scalar(config)
    if not config.architectures:
        name = causal_classes().get(config.model_type)
        config.architectures = [name] if name else None
    return config


def _set_experts(path: Path, settings: dict[str, Any], header: Header, architecture: str) -> None:
    """Add the settings of a mixture of experts that transformers does not read."""
    count, chosen = (
        header.values.get(f"{architecture}.expert_{what}") or 0 for what in ("count", "used_count")
    )
    if not isinstance(count, int) or not isinstance(chosen, int) or chosen > count:
        raise ModelSourceError(
            f"{path}: a token cannot use {chosen!r:.40} of {count!r:.40} experts"
        )
    if count and architecture not in _MIXTURES:
        raise ModelSourceError(
            f"{path}: mixtures of experts of {architecture!r:.40} are not supported, only those of "
            f"{', '.join(_MIXTURES)}"
        )
    for name, info in header.tensors.items():
        for setting, end in _WIDTHS.items():
            if name.endswith(f".ffn_down{end}.weight"):
                settings.setdefault(setting, info.dims[-1])
    if architecture == "llama" and count:
        settings |= {"model_type": "mixtral", "num_local_experts": count}
        settings["num_experts_per_tok"] = chosen


def _check_layers(path: Path, header: Header, architecture: str) -> None:
    """Check the number of layers: their modules take memory before any weight does."""
    numbers = {match[1] for name in header.tensors if (match := _LAYER.search(name))}
    count = header.values.get(f"{architecture}.block_count")
    if count != len(numbers):
        raise ModelSourceError(
            f"{path}: the metadata has {count!r:.40} layers, the tensors are of {len(numbers)}"
        )


def _check_types(path: Path, header: Header) -> None:
    for name, info in header.tensors.items():
        if info.type not in PACKED and info.type not in FLOATS:
            raise ModelSourceError(
                f"{path}: the tensor {name!r:.80} has the type {info.type.name}, which is not "
                "supported"
            )


def save_tokenizer(path: Path, folder: Path, model_type: str) -> None:
    """Write the tokenizer and the chat template in the metadata of a GGUF file to a folder."""
    with failures_as(ModelSourceError, f"{path}: the tokenizer is not valid"):
        tokenizer = tokenizer_of_gguf(path, model_type)
        tokenizer.save_pretrained(folder)


def load_gguf(path: Path, config: Any, build: Callable[[Any], Any], dtype: torch.dtype) -> Any:
    """Load a model from a GGUF file whose header was checked.

    Args:
        path: The file.
        config: Its configuration.
        build: Builds the model of a configuration; its weights are not initialized.
        dtype: The dtype of all weights that are not of few bits.

    Raises:
        ModelSourceError: If a tensor is missing, not used, or has another shape.
    """
    header = read_header(path)
    _check_size(path, header, config, build)
    # Memory of weights that nothing writes to is never resident.
    with no_init_weights():
        model = build(config).to(dtype)
    model.tie_weights()
    return _Filler(path, header, model, dtype).load()


def _check_size(path: Path, header: Header, config: Any, build: Callable[[Any], Any]) -> None:
    """Check that the file has as many weights as the model of its metadata, before it is built."""
    with failures_as(ModelSourceError, f"{path}: the configuration is not valid"):
        with torch.device("meta"):
            parameters = build(config).parameters()
        needed = sum(parameter.numel() for parameter in parameters)
    there = sum(math.prod(info.dims) for info in header.tensors.values())
    if needed > there:
        raise ModelSourceError(
            f"{path}: a model of this metadata has {needed:,} weights, the file has {there:,}"
        )


class PackedEmbedding(CheckpointModule):
    """An embedding with a packed table.

    Args:
        table: The table, ``[tokens, width]``.
        dtype: The dtype of the rows.
        factor: By which rows are multiplied, or None.
    """

    like: torch.Tensor
    factor: torch.Tensor | None

    def __init__(
        self, table: PackedMatrix, dtype: torch.dtype, factor: torch.Tensor | None
    ) -> None:
        """Register the parts of the table as buffers."""
        super().__init__()
        self.sizes = table.sizes
        self.hold_weight(table)
        self.register_buffer("like", torch.zeros((), dtype=dtype))
        self.hold("factor", factor)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of token ids, ``[...]`` to ``[..., width]``."""
        codes, scales, *others = self.weight_parts()
        # Scales that were widened here would be in memory as a copy, which onnxruntime makes once.
        rows = call("embedding_nbits", scales, codes, ids, *others, self.like, **self.sizes)
        return rows if self.factor is None else rows * self.factor.to(rows.dtype)


class _Filler:
    """Fills a model with the tensors of a file."""

    def __init__(self, path: Path, header: Header, model: Any, dtype: torch.dtype) -> None:
        self.path, self.model, self.dtype = path, model, dtype
        with failures_as(ModelSourceError, f"{path}: cannot be read"):
            self.tensors = list(read_tensors(path, header))
            self.processor, self.names = tensor_names(model, header.values[_ARCHITECTURE])

    def load(self) -> Any:
        """Return the model with its weights."""
        missing = dict(self.model.named_parameters())  # one name for weights that are tied
        unread, packed, released = [], {}, Released()
        experts: dict[str, list[ReaderTensor]] = defaultdict(list)
        for tensor in self.tensors:
            name = self.names.get(tensor.name)
            if tensor.name == _ROPE_FACTORS:
                self._divide_frequencies(tensor)
            elif (match := _EXPERTS.fullmatch(tensor.name)) is not None:
                merged = "gate_up_proj" if match[2] else "down_proj"
                experts[f"model.layers.{match[1]}.mlp.experts.{merged}"].append(tensor)
            elif name not in missing:
                unread.append(tensor.name)
            elif (matrix := self._packed(tensor, name)) is None:
                self._fill(missing.pop(name), tensor)
            else:
                packed[name] = matrix.on_disk()
                del missing[name]
            released.add(tensor.n_bytes)
        stacks: dict[str, dict[str, list[LayerWeight]]] = defaultdict(dict)
        for name, tensors in experts.items():
            if name not in missing:
                unread += [tensor.name for tensor in tensors]
                continue
            tensors.sort(key=lambda tensor: ".ffn_up_exps." in tensor.name)  # gates are first
            if matrices := self._experts(tensors, missing.pop(name)):
                path, _, attribute = name.rpartition(".")
                stacks[path][attribute] = matrices
            released.add(sum(tensor.n_bytes for tensor in tensors))
        self._check(list(missing), unread)
        for name, matrix in packed.items():
            self._replace(name, matrix)
        for path, weights in stacks.items():
            like = self.model.get_submodule(path)
            self.model.set_submodule(path, PackedExperts(like, weights))
        return self.model

    def _experts(self, tensors: list[ReaderTensor], parameter: torch.Tensor) -> list[LayerWeight]:
        """Return the matrices of experts, whose outputs follow each other.

        Floating-point numbers are copied to the parameter, and the result is empty.
        """
        shapes = [tuple(int(size) for size in tensor.shape)[::-1] for tensor in tensors]
        count, rows, columns = parameter.shape
        for tensor, shape in zip(tensors, shapes, strict=True):
            if len(shape) != 3 or (shape[0], shape[2]) != (count, columns):
                raise self._wrong_shape(tensor.name, shape, tuple(parameter.shape))
        if (height := sum(shape[1] for shape in shapes)) != rows:
            names = " and ".join(tensor.name for tensor in tensors)
            raise self._wrong_shape(names, (count, height, columns), tuple(parameter.shape))
        kinds = {tensor.tensor_type for tensor in tensors}
        if kinds <= set(FLOATS):
            values = [dequantize(t.data, t.tensor_type).astype(np.float32) for t in tensors]
            parameter.data.copy_(torch.from_numpy(np.concatenate(values, axis=1)))
            return []
        if not kinds <= set(PACKED):
            names = " and ".join(tensor.name for tensor in tensors)
            raise ModelSourceError(
                f"{self.path}: {names} have the types {', '.join(sorted(k.name for k in kinds))}, "
                "of which only some have codes"
            )
        # One product for gate and up, unless they differ in their type.
        groups = [tensors] if len(kinds) == 1 else [[tensor] for tensor in tensors]
        return [
            LayerWeight(packed_experts([t.data for t in one], one[0].tensor_type).on_disk())
            for one in groups
        ]

    def _packed(self, tensor: ReaderTensor, name: str) -> PackedMatrix | None:
        """Return the matrix of a layer; None for values that become floating-point numbers."""
        path, _, attribute = name.rpartition(".")
        module = self.model.get_submodule(path)
        plain = isinstance(module, torch.nn.Linear | torch.nn.Embedding | transformers.Conv1D)
        if tensor.tensor_type not in PACKED or attribute != "weight" or not plain:
            return None
        expected, rows = tuple(module.weight.shape), int(tensor.shape[-1])
        shape = tuple(int(size) for size in tensor.shape)[::-1]
        # Conv1D has inputs first.
        if shape != (expected[::-1] if isinstance(module, transformers.Conv1D) else expected):
            raise self._wrong_shape(tensor.name, shape, expected)
        order = self._order(tensor.name, rows)
        if order is None:
            return None
        data = tensor.data.reshape(rows, -1)
        if not np.array_equal(order, np.arange(rows)):
            data = data[order]
        return packed_matrix(data, tensor.tensor_type, rows)

    def _order(self, name: str, rows: int) -> np.ndarray | None:
        """Return the order in which transformers takes the rows; None if it is none of rows."""
        numbers = np.arange(rows, dtype=np.float64)[:, None]
        try:
            result = self._process(numbers, name).ravel()
        except ValueError:  # it takes columns apart
            return None
        order = result.astype(np.int64)
        return order if np.array_equal(np.sort(result), numbers[:, 0]) else None

    def _process(self, values: np.ndarray, name: str) -> np.ndarray:
        """Return the values of a tensor as transformers has them."""
        result = self.processor.process(
            weights=values, name=name, tensor_key_mapping=self.names, parsed_parameters={}
        )
        return np.asarray(result.weights)

    def _fill(self, parameter: torch.Tensor, tensor: ReaderTensor) -> None:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        weight = torch.from_numpy(np.ascontiguousarray(self._process(values, tensor.name)))
        # Some files have the gate of a shared expert as a vector; transformers expects that only.
        if weight.squeeze().shape != parameter.squeeze().shape:
            raise self._wrong_shape(tensor.name, tuple(weight.shape), tuple(parameter.shape))
        parameter.data.copy_(weight.view(parameter.shape))

    def _divide_frequencies(self, tensor: ReaderTensor) -> None:
        """Divide the frequencies of rotary embeddings, as llama.cpp does; transformers does not."""
        factors = torch.from_numpy(np.array(tensor.data, np.float32))
        for module in self.model.modules():
            frequencies = getattr(module, "inv_freq", None)
            if frequencies is None:
                continue
            if frequencies.shape != factors.shape:
                raise self._wrong_shape(tensor.name, tuple(factors.shape), tuple(frequencies.shape))
            frequencies.div_(factors)

    def _replace(self, name: str, matrix: PackedMatrix) -> None:
        """Replace the layer of a weight, and the head if it is tied to this weight."""
        path = name.removesuffix(".weight")
        module = self.model.get_submodule(path)
        weight = module.weight
        for other, layer in list(self.model.named_modules()):
            if getattr(layer, "weight", None) is not weight:
                continue
            if isinstance(layer, torch.nn.Embedding):
                factor = getattr(layer, "embed_scale", None)
                factor = factor if factor is None else torch.as_tensor(factor)
                self.model.set_submodule(other, PackedEmbedding(matrix, self.dtype, factor))
            else:
                bias = None if layer.bias is None else layer.bias.data
                self.model.set_submodule(other, PackedLinear(matrix, bias))

    def _check(self, missing: list[str], unread: list[str]) -> None:
        for names, message in (
            (missing, "the file has no tensor for"),
            (unread, f"{type(self.model).__name__} of transformers has no weight for"),
        ):
            if names:
                more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
                raise ModelSourceError(f"{self.path}: {message} {', '.join(names[:_SHOWN])}{more}")

    def _wrong_shape(
        self, name: str, shape: tuple[int, ...], expected: tuple[int, ...]
    ) -> ModelSourceError:
        return ModelSourceError(
            f"{self.path}: {name} is {list(shape)} in the file, {list(expected)} in the model"
        )
