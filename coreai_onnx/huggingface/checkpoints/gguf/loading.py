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
from coreai_onnx.huggingface.checkpoints.gguf.blocks import FLOATS, PACKED, packed_matrix
from coreai_onnx.huggingface.checkpoints.gguf.header import Header, read_header, read_tensors
from coreai_onnx.huggingface.checkpoints.gguf.metadata import query_scalar
from coreai_onnx.huggingface.checkpoints.packed_matrices import (
    CheckpointModule,
    PackedLinear,
    PackedMatrix,
)
from coreai_onnx.huggingface.folders import setting_fault
from coreai_onnx.huggingface.transformers_names import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    causal_classes,
    get_gguf_hf_weights_map,
    load_gguf_checkpoint,
    no_init_weights,
    tokenizer_of_gguf,
)
from coreai_onnx.messages import without_warnings
from coreai_onnx.model.files.saving import Released

_ARCHITECTURE = "general.architecture"
_ROPE_FACTORS = "rope_freqs.weight"
_EXPERTS = "_exps."
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


def _check_layers(path: Path, header: Header, architecture: str) -> None:
    """Check the number of layers: their modules take memory before any weight does."""
    numbers = {found[1] for name in header.tensors if (found := _LAYER.search(name))}
    count = header.values.get(f"{architecture}.block_count")
    if count != len(numbers):
        raise ModelSourceError(
            f"{path}: the metadata has {count!r:.40} layers, the tensors are of {len(numbers)}"
        )


def _check_types(path: Path, header: Header) -> None:
    for name, info in header.tensors.items():
        if _EXPERTS in name:
            raise ModelSourceError(f"{path}: mixtures of experts are not supported ({name!r:.80})")
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

    factor: torch.Tensor | None

    def __init__(
        self, table: PackedMatrix, dtype: torch.dtype, factor: torch.Tensor | None
    ) -> None:
        """Register the parts of the table as buffers."""
        super().__init__()
        self.sizes, self.dtype = table.sizes, dtype
        self.hold_weight(table)
        self.hold("factor", factor)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of token ids, ``[...]`` to ``[..., width]``."""
        codes, scales, *others = self.weight_parts()
        # Rows have the dtype of the scales, and float16 would round them.
        rows = call("embedding_nbits", scales.float(), codes, ids, *others, **self.sizes)
        rows = rows.to(self.dtype)
        return rows if self.factor is None else rows * self.factor.to(self.dtype)


class _Filler:
    """Fills a model with the tensors of a file."""

    def __init__(self, path: Path, header: Header, model: Any, dtype: torch.dtype) -> None:
        self.path, self.model, self.dtype = path, model, dtype
        with failures_as(ModelSourceError, f"{path}: cannot be read"):
            self.tensors = list(read_tensors(path, header))
            config = model.config.to_dict()
            architecture = header.values[_ARCHITECTURE]
            self.processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config)
            self.names = get_gguf_hf_weights_map(model, self.processor)

    def load(self) -> Any:
        """Return the model with its weights."""
        missing = dict(self.model.named_parameters())  # one name for weights that are tied
        unread, packed, released = [], {}, Released()
        for tensor in self.tensors:
            name = self.names.get(tensor.name)
            if tensor.name == _ROPE_FACTORS:
                self._divide_frequencies(tensor)
            elif name not in missing:
                unread.append(tensor.name)
            elif (matrix := self._packed(tensor, name)) is None:
                self._fill(missing.pop(name), tensor)
            else:
                packed[name] = matrix.on_disk()
                del missing[name]
            released.add(tensor.n_bytes)
        self._check(list(missing), unread)
        for name, matrix in packed.items():
            self._replace(name, matrix)
        return self.model

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
        if weight.shape != parameter.shape:
            raise self._wrong_shape(tensor.name, tuple(weight.shape), tuple(parameter.shape))
        parameter.data.copy_(weight)

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
