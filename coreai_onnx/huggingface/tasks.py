"""The tasks of transformers models: the class that has the head, inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from coreai_onnx.errors import ModelSourceError


@dataclass(frozen=True)
class Task:
    """What is exported of a model.

    Attributes:
        name: transformers' name of the task, as for ``pipeline``.
        auto_class: Name of the class of transformers that builds the model with its head.
        endings: Endings of the names of such models in ``architectures``.
        outputs: Names of the outputs, as fields of the model's result; those that it has are
            exported.
        takes: The kinds of inputs: ``"text"``, ``"image"``, ``"audio"``; empty: the model's main
            one.
    """

    name: str
    auto_class: str
    endings: tuple[str, ...]
    outputs: tuple[str, ...] = ("logits",)
    takes: tuple[str, ...] = ("text",)


_ALL = (
    Task("text-generation", "AutoModelForCausalLM", ("ForCausalLM", "LMHeadModel")),
    Task(
        "automatic-speech-recognition",
        "AutoModelForSpeechSeq2Seq",
        ("WhisperForConditionalGeneration",),
    ),
    # After Whisper, whose name has the same ending.
    Task("text2text-generation", "AutoModelForSeq2SeqLM", ("ForConditionalGeneration", "MTModel")),
    Task("fill-mask", "AutoModelForMaskedLM", ("ForMaskedLM",)),
    Task(
        "text-classification",
        "AutoModelForSequenceClassification",
        ("ForSequenceClassification",),
    ),
    Task("token-classification", "AutoModelForTokenClassification", ("ForTokenClassification",)),
    Task(
        "question-answering",
        "AutoModelForQuestionAnswering",
        ("ForQuestionAnswering",),
        ("start_logits", "end_logits"),
    ),
    Task(
        "image-classification",
        "AutoModelForImageClassification",
        ("ForImageClassification",),
        takes=("image",),
    ),
    Task(
        "object-detection",
        "AutoModelForObjectDetection",
        ("ForObjectDetection",),
        ("logits", "pred_boxes"),
        takes=("image",),
    ),
    Task(
        "zero-shot-image-classification",
        "AutoModelForZeroShotImageClassification",
        ("CLIPModel", "SiglipModel", "Siglip2Model"),
        ("logits_per_image", "logits_per_text", "text_embeds", "image_embeds"),
        takes=("text", "image"),
    ),
    Task("sentence-similarity", "AutoModel", (), ("token_embeddings", "sentence_embedding")),
    Task("automatic-speech-recognition", "AutoModelForCTC", ("ForCTC",), takes=("audio",)),
    Task("feature-extraction", "AutoModel", ("Model", "Encoder"), ("last_hidden_state",), takes=()),
)
TASKS: Mapping[str, Task] = MappingProxyType(
    {task.name: next(one for one in _ALL if one.name == task.name) for task in _ALL}
)
"""The tasks by name, the first of each. ``feature-extraction`` is last: it fits most names."""


def task_of(config: Any, name: str | None) -> Task:
    """Return the task with a name, or the one that a configuration names.

    Args:
        config: The configuration of the model.
        name: The name of a task; None reads ``architectures`` of the configuration.

    Raises:
        ModelSourceError: If there is no such task, or the configuration names none.
    """
    if name is not None and name not in TASKS:
        raise ModelSourceError(f"there is no task {name!r}; there are {', '.join(TASKS)}")
    architectures = list(getattr(config, "architectures", None) or ())
    # transformers builds the first one as well.
    for architecture in architectures[:1]:
        for task in _ALL:
            if name in (None, task.name) and task.endings and architecture.endswith(task.endings):
                return task
    if name is not None:
        return TASKS[name]
    named = ", ".join(architectures) or "none"
    raise ModelSourceError(
        f"the configuration names no architecture of a known task (architectures: {named})\n"
        f"  give the task: {', '.join(TASKS)}"
    )
