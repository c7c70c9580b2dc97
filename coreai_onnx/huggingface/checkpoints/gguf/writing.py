"""Writes the decoder of an exported folder as a GGUF file, which llama.cpp reads.

Names and orders of rows of tensors are those with which transformers reads a GGUF.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np
import torch
import transformers
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.gguf_writer import WriterState

from coreai_onnx.composites.few_bit_weights import dequantized
from coreai_onnx.errors import ModelSourceError, SaveError, failures_as
from coreai_onnx.huggingface.checkpoints.gguf.decoder_weights import DecoderWeights
from coreai_onnx.huggingface.checkpoints.gguf.metadata import (
    SLIDING,
    add_hyperparameters,
    add_tokenizer,
    check_config,
    head_dim,
    rope_parameters,
    tensor_names,
)
from coreai_onnx.huggingface.checkpoints.gguf.packing import by_rows, fit
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedMatrix
from coreai_onnx.huggingface.transformers_names import (
    model_of_config,
)
from coreai_onnx.messages import begin_stage
from coreai_onnx.model.files.new_files import all_or_nothing
from coreai_onnx.model.weight_formats import BY_ROW, NAMES
from coreai_onnx.program import OnnxProgram

_T = GGMLQuantizationType
FLOAT_TYPES: Mapping[str, GGMLQuantizationType] = {
    "float16": _T.F16,
    "bfloat16": _T.BF16,
    "float32": _T.F32,
}
_DTYPES = {_T.F16: np.float16, _T.BF16: ml_dtypes.bfloat16, _T.F32: np.float32}
_CHUNK = 1 << 22  # elements that are converted at once
_HEAD = "output.weight"
_EXPERTS = re.compile(r"\.experts\.(gate_up_proj|down_proj)$")
_SHARED_GATE = ".ffn_gate_inp_shexp."
_Stored = np.ndarray | PackedMatrix


class GgufTensor(NamedTuple):
    """A tensor to write: dims as torch has them, its type, and its bytes by chunks of rows."""

    name: str
    dims: tuple[int, ...]
    type: GGMLQuantizationType
    chunks: Callable[[], Iterator[np.ndarray]]

    @property
    def size(self) -> int:
        """The number of bytes."""
        block, size = GGML_QUANT_SIZES[self.type]
        return int(np.prod(self.dims)) // block * size


def write_gguf(
    source: Path,
    config: Any,
    target: Path,
    *,
    otherwise: str | None = None,
    round_minimums: bool = False,
) -> list[GgufTensor]:
    """Write a decoder as a GGUF file, which appears complete or not at all.

    Args:
        source: The ``.onnx`` file, in a folder with its tokenizer.
        config: The configuration of the model.
        target: The file to write.
        otherwise: The dtype in which weights are written that no type of GGUF holds exactly,
            ``"float16"``, ``"bfloat16"`` or ``"float32"``; None refuses them.
        round_minimums: Whether products of scales and zero points may be rounded to float16.

    Returns:
        The tensors.

    Raises:
        ModelSourceError: If llama.cpp has no such model or tokenizer, or a weight is missing or
            does not fit.
        LoadError: If the file cannot be read.
        SaveError: If the target cannot be written.
    """
    architecture = check_config(config)
    begin_stage("load")
    weights = DecoderWeights(OnnxProgram.load(source).model.graph, source)
    fallback = None if otherwise is None else FLOAT_TYPES[otherwise]
    scales, factors = _frequencies(weights, config, architecture)
    collector = _Collector(weights, config, architecture, fallback, round_minimums=round_minimums)
    tensors = collector.tensors()
    tensors += [_float_tensor("rope_freqs.weight", factors, _T.F32)] if factors is not None else []
    writer = GGUFWriter(None, architecture)
    add_hyperparameters(writer, config, scales, source.resolve().parent.name)
    add_tokenizer(writer, source.parent, config.vocab_size)
    writer.add_quantization_version(2)
    if (file_type := _file_type(tensors)) is not None:
        writer.add_file_type(file_type)
    begin_stage("save")
    with failures_as(SaveError, f"cannot write {target}"), all_or_nothing() as files:
        _write(writer, tensors, files.create(target))
    return tensors


def _file_type(tensors: list[GgufTensor]) -> LlamaFileType | None:
    """Return the type of most bytes as llama.cpp calls a file; None if it has no name for it."""
    sizes: dict[str, int] = defaultdict(int)
    for tensor in tensors:
        sizes[tensor.type.name] += tensor.size
    name = max(sizes, key=lambda one: sizes[one])
    names = (f"MOSTLY_{name}", f"MOSTLY_{name}_M", f"ALL_{name}")
    return next((LlamaFileType[one] for one in names if one in LlamaFileType.__members__), None)


def _write(writer: GGUFWriter, tensors: list[GgufTensor], file: BinaryIO) -> None:
    for tensor in tensors:
        writer.add_tensor_info(
            tensor.name, tensor.dims, np.dtype(np.float32), tensor.size, tensor.type
        )
    # The writer opens files by their names; this one is renamed when it is complete.
    writer.fout, writer.state = [file], WriterState.EMPTY  # type: ignore[list-item]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.write_padding(file, file.tell())
    for tensor in tensors:
        chunks = (np.ascontiguousarray(chunk).view(np.uint8) for chunk in tensor.chunks())
        file.writelines(chunk.data for chunk in chunks)
        writer.write_padding(file, tensor.size)


def _frequencies(
    weights: DecoderWeights, config: Any, architecture: str
) -> tuple[dict[str, float], np.ndarray | None]:
    """Return factors that divide the frequencies of a type of layers, or of each dimension."""
    scales: dict[str, float] = {}
    parameters = rope_parameters(config)
    for layers, settings in parameters.items():
        frequencies = weights.frequencies(layers, only=len(parameters) == 1)
        if frequencies is None and len(parameters) == 1:
            raise ModelSourceError(
                f"{weights.source}: the frequencies of positions are not found; export for the "
                "target kernels or onnxruntime"
            )
        steps = torch.arange(0, head_dim(config), 2, dtype=torch.float32) / head_dim(config)
        usual = (1.0 / settings["rope_theta"] ** steps).numpy()
        frequencies = usual / settings.get("factor", 1) if frequencies is None else frequencies
        factors = (usual / frequencies.astype(np.float64)).astype(np.float32)
        scales[layers] = float(np.median(factors).round(5))
        if np.allclose(factors, scales[layers], rtol=1e-5, atol=0):
            continue
        if architecture == "llama":
            return {}, factors
        raise ModelSourceError(
            f"llama.cpp does not scale the positions of {architecture} like this"
        )
    if scales.get(SLIDING, 1) != 1:
        raise ModelSourceError("llama.cpp does not scale the positions of sliding attention")
    return scales, None


def _float_tensor(name: str, values: np.ndarray, kind: GGMLQuantizationType) -> GgufTensor:
    def chunks() -> Iterator[np.ndarray]:
        rows = max(1, _CHUNK // max(1, values[:1].size))
        for first in range(0, len(values), rows):
            yield values[first : first + rows].astype(_DTYPES[kind])

    return GgufTensor(name, values.shape, kind, chunks)


class _Collector:
    """Collects the tensors of a file."""

    def __init__(
        self,
        weights: DecoderWeights,
        config: Any,
        architecture: str,
        fallback: GGMLQuantizationType | None,
        *,
        round_minimums: bool,
    ) -> None:
        self.weights, self.fallback, self.round_minimums = weights, fallback, round_minimums
        with torch.device("meta"):
            model = model_of_config(transformers.AutoModelForCausalLM, config)
        self.parameters = dict(model.named_parameters())
        self.processor, self.names = tensor_names(model, architecture)

    def tensors(self) -> list[GgufTensor]:
        """Return the tensors of all parameters.

        Raises:
            ModelSourceError: If one is missing, or does not fit.
        """
        places = {target: name for name, target in self.names.items()}
        experts = [name for name in self.parameters if _EXPERTS.search(name)]
        others = [name for name in self.parameters if name not in experts]
        if unknown := [name for name in others if name not in places]:
            raise ModelSourceError(f"llama.cpp has no tensor for {', '.join(unknown[:3])}")
        tensors = [self._tensor(places[name], name) for name in others]
        for name in experts:
            tensors += self._experts(name)
        return [*tensors, *self._untied_head()]

    def _experts(self, parameter: str) -> list[GgufTensor]:
        """Return the tensors of a stack of experts; those of gate and up are two."""
        module, _, attribute = parameter.rpartition(".")
        layer = re.search(r"\d+", module)
        stacks = self.weights.experts(f"model.{module}")
        if layer is None or len(stacks) not in (2, 3):
            raise self._missing(parameter)
        count, rows, columns = self.parameters[parameter].shape
        half = rows // 2
        if attribute == "down_proj":
            parts = {"down": (stacks[-1], slice(rows))}
        elif len(stacks) == 2:
            parts = {"gate": (stacks[0], slice(half)), "up": (stacks[0], slice(half, rows))}
        else:  # weights of different types are products of their own
            parts = {"gate": (stacks[0], slice(half)), "up": (stacks[1], slice(half))}
        tensors = []
        for part, (read, span) in parts.items():
            height = len(range(rows)[span])
            rows_of_experts = functools.partial(_stacked_rows, read, span)
            if (shape := _shape(rows_of_experts())) != (count * height, columns):
                raise ModelSourceError(
                    f"{self.weights.source}: {parameter} is {list(shape)} for {part}, not "
                    f"{[count * height, columns]}"
                )
            name = f"blk.{layer[0]}.ffn_{part}_exps.weight"
            flat = self._of_stored(name, parameter, rows_of_experts)
            tensors.append(flat._replace(dims=(count, height, columns)))
        return tensors

    def _missing(self, parameter: str) -> ModelSourceError:
        return ModelSourceError(
            f"{self.weights.source}: no node has the weight {parameter}; export for the target "
            "kernels or onnxruntime, without passes that merge layers"
        )

    def _tensor(self, name: str, parameter: str) -> GgufTensor:
        module, _, attribute = parameter.rpartition(".")
        read = self.weights.bias if attribute == "bias" else self.weights.weight
        if (stored := read(f"model.{module}")) is None:
            raise self._missing(parameter)
        dims = tuple(self.parameters[parameter].shape)
        if (shape := _shape(stored)) != dims:
            raise ModelSourceError(
                f"{self.weights.source}: {parameter} is {list(shape)}, not {list(dims)}"
            )
        if _SHARED_GATE in name:  # a vector, which llama.cpp has in float32
            return _float_tensor(name, _values(stored).ravel(), _T.F32)
        order = self._order(name, dims)
        return self._of_stored(
            name, parameter, lambda: _reordered(_certain(read(f"model.{module}")), order)
        )

    def _of_stored(self, name: str, parameter: str, read: Callable[[], _Stored]) -> GgufTensor:
        # Read again when it is written, so that one weight at a time is in memory.
        stored = read()
        if isinstance(stored, np.ndarray):
            # llama.cpp adds biases and multiplies by norms in float32.
            kind = FLOAT_TYPES.get(stored.dtype.name, _T.F32) if stored.ndim > 1 else _T.F32
            return _float_tensor(name, stored, kind)
        fitting = fit(stored, round_minimums=self.round_minimums)
        if fitting is not None:
            kind, pack = fitting
            return GgufTensor(name, _shape(stored), kind, lambda: map(pack, by_rows(_packed(read))))
        if self.fallback is None:
            zeros = " with zero points" if stored.zero_points is not None else ""
            raise ModelSourceError(
                f"{self.weights.source}: no type of GGUF holds {parameter}: {stored.bits} bits in "
                f"groups of {stored.group_size}{zeros}; --otherwise float16 dequantizes such "
                "weights"
            )
        kind = self.fallback
        return GgufTensor(
            name, _shape(stored), kind, lambda: _dequantized(_packed(read), kind, parameter)
        )

    def _order(self, name: str, dims: tuple[int, ...]) -> np.ndarray | None:
        """Return the order of the rows in the file; None for that of the model."""
        numbers = np.arange(dims[0], dtype=np.float64)
        processed = self.processor.process(
            weights=numbers if len(dims) == 1 else numbers[:, None],
            name=name,
            tensor_key_mapping=self.names,
            parsed_parameters={},
        )
        # Where values change (the norms of Gemma), the graph has those of the file.
        order = np.asarray(processed.weights).ravel()
        inverse = np.argsort(order, kind="stable")
        return None if np.array_equal(inverse, numbers) else inverse

    def _untied_head(self) -> list[GgufTensor]:
        """Return the head of a model that ties it to the embedding, if it is stored otherwise."""
        if "lm_head.weight" in self.parameters:
            return []
        head = self.weights.weight("model.lm_head")
        embedding = self.weights.weight("model.model.embed_tokens")
        if head is None or embedding is None or _same(head, embedding):
            return []
        return [self._of_stored(_HEAD, "lm_head.weight", lambda: head)]


def _certain(stored: _Stored | None) -> _Stored:
    assert stored is not None
    return stored


def _packed(read: Callable[[], _Stored]) -> PackedMatrix:
    stored = read()
    assert isinstance(stored, PackedMatrix)
    return stored


def _shape(stored: _Stored) -> tuple[int, ...]:
    return stored.shape


def _reordered(stored: _Stored, order: np.ndarray | None) -> _Stored:
    if order is None:
        return stored
    if isinstance(stored, np.ndarray):
        reordered: np.ndarray = stored[order]
        return reordered
    parts = {name: getattr(stored, name) for name in BY_ROW}
    return replace(stored, **{n: part[order] for n, part in parts.items() if part is not None})


def _stacked_rows(read: Callable[[], _Stored], span: slice) -> _Stored:
    """Return some rows of each expert, one expert after the other."""
    stored = read()
    if isinstance(stored, np.ndarray):
        return stored[:, span].reshape(-1, stored.shape[-1])
    parts = {name: getattr(stored, name) for name in BY_ROW}
    flat = {n: part[:, span].flatten(0, 1) for n, part in parts.items() if part is not None}
    return replace(stored, **flat)


def _same(one: _Stored, other: _Stored) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and np.array_equal(one, other)
    if isinstance(other, np.ndarray):
        return False
    pairs = [(getattr(one, name), getattr(other, name)) for name in NAMES]
    return one.bits == other.bits and all(
        a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs
    )


def _values(stored: _Stored) -> np.ndarray:
    if isinstance(stored, np.ndarray):
        return stored
    parts = [getattr(stored, name) for name in NAMES]
    values: np.ndarray = (
        dequantized(parts, stored.bits, stored.scale_bits, torch.float32).flatten(1).numpy()
    )
    return values


def _dequantized(
    stored: PackedMatrix, kind: GGMLQuantizationType, parameter: str
) -> Iterator[np.ndarray]:
    for rows in by_rows(stored):
        values = _values(rows)
        if kind == _T.F16 and np.abs(values).max() > np.finfo(np.float16).max:
            raise ModelSourceError(f"the weight {parameter} has values beyond the range of float16")
        yield values.astype(_DTYPES[kind])
