"""The parts around a model that `export_model` writes into its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.encoder_decoders import ATTENTIONS
from coreai_onnx.huggingface.heads.inputs import inputs_of
from coreai_onnx.huggingface.sources import LoadedModel
from coreai_onnx.huggingface.surroundings.detection import boxes_behind
from coreai_onnx.huggingface.surroundings.graphs import put_behind, put_in_front
from coreai_onnx.huggingface.surroundings.images import image_front, image_processor_of
from coreai_onnx.huggingface.surroundings.tokenizers import tokenizer_front, tokenizer_of
from coreai_onnx.program import OnnxProgram

PARTS = ("tokenizer", "image_processor", "image_decoder", "nms", "pooling", ATTENTIONS)
_POOLED = "sentence-similarity"
_MADE_INPUTS = {"tokenizer": "input_ids", "image_processor": "pixel_values"}


def task_with(include: Sequence[str], task: str | None) -> str | None:
    """Return the task that parts ask for, after a check of their names.

    Raises:
        ModelSourceError: If a name is not one of `PARTS`, or a part does not fit the task.
    """
    if isinstance(include, str):
        raise ModelSourceError(f"include must be a list of names, as [{include!r}]")
    if strangers := [name for name in include if name not in PARTS]:
        raise ModelSourceError(f"include {strangers[0]!r} must be one of {', '.join(PARTS)}")
    if "image_decoder" in include and "image_processor" not in include:
        raise ModelSourceError('include "image_decoder" needs "image_processor"')
    if "pooling" not in include:
        return task
    if task not in (None, "feature-extraction", _POOLED):
        raise ModelSourceError(f'include "pooling" is for sentence embeddings, not for {task}')
    return _POOLED


@dataclass(frozen=True)
class Surroundings:
    """Parts to add to the model of a file.

    Attributes:
        fronts: What computes its inputs.
        behind: What computes results from its outputs; None for nothing.
    """

    fronts: tuple[ir.Model, ...] = ()
    behind: ir.Model | None = None

    def add_to(self, programs: Mapping[str, OnnxProgram]) -> None:
        """Add the parts to the model of an export, in place; they are consumed."""
        first = next(iter(programs.values()), None)
        if first is None:
            return
        if self.behind is not None:
            put_behind(first.model, self.behind)
        for front in self.fronts:
            put_in_front(first.model, front)


def surroundings(
    include: Sequence[str], loaded: LoadedModel, opset: int, *, check: bool
) -> Surroundings:
    """Make the parts for a model, before it is converted.

    Raises:
        ModelSourceError: If the folder has no tokenizer or image processor, or one that the graph
            has no form for, or the model does not take what the part computes.
    """
    name = type(loaded.model).__name__
    if ATTENTIONS in include and "SpeechSeq2Seq" not in loaded.task.auto_class:
        raise ModelSourceError(
            f"include {ATTENTIONS!r} is for speech models with a decoder, not for {name}"
        )
    include = [part for part in include if part != ATTENTIONS]  # an output of the model itself
    if not include:
        return Surroundings()
    makers: dict[str, Callable[[], ir.Model]] = {
        "tokenizer": lambda: tokenizer_front(tokenizer_of(loaded.folder), opset, check=check),
        "image_processor": lambda: image_front(
            image_processor_of(loaded.folder),
            opset,
            decodes="image_decoder" in include,
            sizes="nms" in include,
        ),
    }
    if loaded.task.name == "text-generation" or "Seq2Seq" in loaded.task.auto_class:
        raise ModelSourceError(
            f"include is for models that run once: {loaded.task.name} calls its file for each token"
        )
    taken = [one.name for one in inputs_of(loaded.model, loaded.task)]
    for part in makers:
        if part in include and _MADE_INPUTS[part] not in taken:
            raise ModelSourceError(
                f"{name} takes no {_MADE_INPUTS[part]}, which include {part!r} computes"
            )
    behind = None
    if "nms" in include:
        if loaded.task.name != "object-detection":
            raise ModelSourceError(f'include "nms" is for object-detection, not {loaded.task.name}')
        behind = boxes_behind(loaded.model.config, opset)
    return Surroundings(tuple(make() for part, make in makers.items() if part in include), behind)
