"""Export of models of transformers as folders that other runtimes run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from coreai_onnx.converter import TorchConverter
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.export.torch_export import TorchExport, with_named_dims
from coreai_onnx.huggingface.decoders import TOTAL, Decoder, cache_names
from coreai_onnx.huggingface.folders import check_new, copy_companions, new_folder, write_json
from coreai_onnx.huggingface.genai import CONFIG, genai_config
from coreai_onnx.huggingface.heads import Head
from coreai_onnx.huggingface.sources import load_source
from coreai_onnx.model.contents import RELATIONS, STATES
from coreai_onnx.printable import printable
from coreai_onnx.program import OnnxProgram
from coreai_onnx.stages import begin
from coreai_onnx.table import render, size_text

if TYPE_CHECKING:
    from coreai_onnx.passes import Target

MODEL = "model.onnx"
DTYPES = {"float32": torch.float32, "float16": torch.float16}
"""The dtypes of weights and computation; onnxruntime has no bfloat16 on a CPU."""


@dataclass(frozen=True)
class ExportedFolder:
    """What an export wrote; prints as a table.

    Attributes:
        path: The folder.
        task: The task of the model.
        program: The converted program.
        files: The files, sorted by name.
    """

    path: Path
    task: str
    program: OnnxProgram
    files: tuple[Path, ...]

    def __str__(self) -> str:
        """Return the files with their sizes, and the inputs and outputs of the model."""
        rows = [(file.name, size_text(file.stat().st_size)) for file in self.files]
        return f"{printable(str(self.path))}: {self.task}\n{render(('file', 'size'), rows)}"


def export_model(
    source: str | PathLike[str] | torch.nn.Module,
    folder: str | PathLike[str],
    *,
    task: str | None = None,
    dtype: str = "float32",
    target: Target = "onnxruntime",
    opset_version: int | None = None,
    minimum_onnxruntime: str | None = None,
    external_data: bool | None = None,
    seed: int = 0,
) -> ExportedFolder:
    """Export a model of transformers to a folder with its tokenizer and configuration.

    The names of inputs and outputs are those of optimum, onnxruntime-genai and transformers.js.
    Batch, sequence and, for a decoder, the length of the cache are dynamic.

    Args:
        source: A local folder of transformers (``config.json``, weights, tokenizer), a
            ``config.json`` alone, whose model gets random weights, or a loaded model.
        folder: The folder to write; it is new or empty. It appears complete or not at all.
        task: The task, ``"text-generation"``; None reads it from the configuration.
        dtype: The dtype of weights and computation, ``"float32"`` or ``"float16"``.
        target: What will run the file, as for `OnnxProgram.optimize`.
        opset_version: As for `TorchConverter.to_onnx`.
        minimum_onnxruntime: As for `TorchConverter.to_onnx`.
        external_data: As for `OnnxProgram.save`.
        seed: Seed of random weights.

    Returns:
        The folder; it prints as a table of its files.

    Raises:
        ModelSourceError: If the source is missing, incomplete or unknown, or the model has no head
            for the task.
        SaveError: If the folder exists with other files, or cannot be written.
        ExportError, ConversionError: If the model cannot be exported or converted.
    """
    if dtype not in DTYPES:
        raise ModelSourceError(f"dtype {dtype!r} is none of {', '.join(DTYPES)}")
    path = Path(folder)
    check_new(path)
    begin("load")
    loaded = load_source(source, task, dtype=DTYPES[dtype], seed=seed)
    decodes = loaded.task.name == "text-generation"
    module: Any = Decoder(loaded.model) if decodes else Head(loaded.model, loaded.task)
    program = _converted(module, DTYPES[dtype], opset_version, minimum_onnxruntime)
    if decodes:
        _describe_cache(program.model, module)
    program.optimize(target=target)
    with new_folder(path) as temporary:
        program.save(temporary / MODEL, external_data=external_data)
        copy_companions(loaded.model, loaded.folder, temporary)
        if decodes:
            write_json(temporary / CONFIG, genai_config(module, MODEL))
    return ExportedFolder(path, loaded.task.name, program, tuple(sorted(path.iterdir())))


def _converted(
    module: Any, dtype: torch.dtype, opset: int | None, minimum: str | None
) -> OnnxProgram:
    export = TorchExport(
        module.example(dtype),
        None,
        with_named_dims(module.dynamic_shapes()),
        deferred=True,
        oblivious=True,
    )
    converter = TorchConverter().add_pytorch_module(
        module.eval(),
        export_fn=export,
        input_names=module.input_names,
        output_names=module.output_names,
    )
    return converter.to_onnx(opset_version=opset, minimum_onnxruntime=minimum)


def _describe_cache(model: ir.Model, decoder: Decoder) -> None:
    """Mark the cache as states, and write the length of the mask as that of cache and tokens."""
    layers = len(decoder.layers)
    pairs = zip(cache_names("past_key_values", layers), cache_names("present", layers), strict=True)
    states = [{"input": old, "output": new} for old, new in pairs]
    model.metadata_props[STATES] = json.dumps(states)
    model.metadata_props.pop(RELATIONS, None)  # they only say that the mask has this length
    mask = next(value for value in model.graph.inputs if value.name == "attention_mask")
    assert mask.shape is not None
    mask.shape = ir.Shape([mask.shape[0], TOTAL])
