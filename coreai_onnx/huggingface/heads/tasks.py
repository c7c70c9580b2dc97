"""The tasks of transformers models: the class that has the head, inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import transformers

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.transformers_names import architectures_of


@dataclass(frozen=True)
class Task:
    """What is exported of a model.

    Attributes:
        name: transformers' name of the task, as for ``pipeline``.
        auto_class: Name of the class of transformers that builds the model with its head.
        takes: The kinds of inputs, keys of `coreai_onnx.huggingface.heads.inputs.KINDS`; empty: the
            model's main one.
        outputs: Names of the outputs, as fields of the model's result; those that it has are
            exported.
        endings: Endings of names of models that ``auto_class`` may not list.
        separate: Whether texts are compared with pictures or sounds, each with a batch of its own.
    """

    name: str
    auto_class: str
    takes: tuple[str, ...] = ("text",)
    outputs: tuple[str, ...] = ("logits",)
    endings: tuple[str, ...] = ()
    separate: bool = False

    def fits(self, architecture: str) -> bool:
        """Return whether a class of models has the head of the task.

        Args:
            architecture: The name of the class, as in ``architectures`` of a configuration.
        """
        if self.endings:
            return architecture.endswith(self.endings)
        # Releases before 5.11 lack some of the classes, and then have no model with the head.
        auto_class = getattr(transformers, self.auto_class, None)
        return auto_class is not None and architecture in architectures_of(auto_class)


_SPANS = ("start_logits", "end_logits")
_BOXES = ("logits", "pred_boxes")
_SEGMENTS = (*_BOXES, "pred_masks", "class_queries_logits", "masks_queries_logits")
_PAIRS = ("text_embeds", "image_embeds", "audio_embeds")
_IMAGE, _AUDIO = ("image",), ("audio",)
# The first one that fits is the task of a model.
_ALL = (
    # Before text-generation, which some of these classes have as well.
    Task("image-text-to-text", "AutoModelForImageTextToText"),
    Task("any-to-any", "AutoModelForMultimodalLM"),
    Task("text-generation", "AutoModelForCausalLM"),
    Task("automatic-speech-recognition", "AutoModelForSpeechSeq2Seq"),
    Task("text2text-generation", "AutoModelForSeq2SeqLM"),
    Task("fill-mask", "AutoModelForMaskedLM"),
    Task("text-classification", "AutoModelForSequenceClassification"),
    Task("token-classification", "AutoModelForTokenClassification"),
    Task(
        "document-question-answering",
        "AutoModelForDocumentQuestionAnswering",
        ("text", "image"),
        _SPANS,
    ),
    Task("question-answering", "AutoModelForQuestionAnswering", outputs=_SPANS),
    Task("multiple-choice", "AutoModelForMultipleChoice"),
    Task("image-classification", "AutoModelForImageClassification", _IMAGE),
    Task("object-detection", "AutoModelForObjectDetection", _IMAGE, _BOXES),
    *(
        Task("image-segmentation", f"AutoModelFor{kind}Segmentation", _IMAGE, _SEGMENTS)
        for kind in ("Semantic", "Universal", "Instance", "Image")
    ),
    Task("depth-estimation", "AutoModelForDepthEstimation", _IMAGE, ("predicted_depth",)),
    Task(
        "mask-generation",
        "AutoModelForMaskGeneration",
        _IMAGE,
        ("iou_scores", "pred_masks", "object_score_logits"),
    ),
    Task("image-to-image", "AutoModelForImageToImage", _IMAGE, ("reconstruction",)),
    Task("image-matting", "AutoModelForImageMatting", _IMAGE, ("alphas",)),
    Task(
        "keypoint-detection",
        "AutoModelForKeypointDetection",
        _IMAGE,
        ("keypoints", "scores", "descriptors", "mask"),
    ),
    Task("pose-estimation", "AutoModelForPoseEstimation", _IMAGE, ("heatmaps",)),
    Task("video-classification", "AutoModelForVideoClassification", ("video",)),
    Task(
        "zero-shot-image-classification",
        "AutoModelForZeroShotImageClassification",
        ("text", "image"),
        ("logits_per_image", "logits_per_text", *_PAIRS),
        separate=True,
    ),
    Task(
        "zero-shot-audio-classification",
        "AutoModel",
        ("text", "audio"),
        ("logits_per_audio", "logits_per_text", *_PAIRS),
        ("ClapModel",),
        separate=True,
    ),
    Task(
        "zero-shot-object-detection",
        "AutoModelForZeroShotObjectDetection",
        ("text", "image"),
        (*_BOXES, *_PAIRS),
        separate=True,
    ),
    Task("audio-classification", "AutoModelForAudioClassification", _AUDIO),
    Task("audio-frame-classification", "AutoModelForAudioFrameClassification", _AUDIO),
    Task("audio-xvector", "AutoModelForAudioXVector", _AUDIO, ("logits", "embeddings")),
    Task("automatic-speech-recognition", "AutoModelForCTC", _AUDIO),
    *(
        Task("text-to-audio", f"AutoModelForTextTo{kind}", outputs=("waveform", "spectrogram"))
        for kind in ("Waveform", "Spectrogram")
    ),
    Task(
        "time-series-prediction",
        "AutoModelForTimeSeriesPrediction",
        ("series",),
        ("prediction_outputs", "mean_predictions", "full_predictions"),
        ("ForPrediction",),
    ),
    Task("feature-extraction", "AutoModel", (), ("last_hidden_state",), ("Model", "Encoder")),
    Task(
        "sentence-similarity",
        "AutoModel",
        outputs=("token_embeddings", "sentence_embedding"),
        endings=("Model", "Encoder"),
    ),
    Task("sparse-embedding", "AutoModelForMaskedLM", outputs=("sentence_embedding",)),
    Task(
        "late-interaction", "AutoModel", outputs=("token_embeddings",), endings=("Model", "Encoder")
    ),
)
TASKS: Mapping[str, Task] = MappingProxyType(
    {task.name: next(one for one in _ALL if one.name == task.name) for task in _ALL}
)
"""The tasks by name, the first of each."""
EMBEDDINGS = ("sentence-similarity", "sparse-embedding", "late-interaction")
"""The tasks whose outputs are the embeddings of sentence-transformers."""
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "zero-shot-classification": "text-classification",
        "text-ranking": "text-classification",
        "summarization": "text2text-generation",
        "text-to-speech": "text-to-audio",
        "translation": "text2text-generation",
        "image-feature-extraction": "feature-extraction",
        "semantic-segmentation": "image-segmentation",
        "universal-segmentation": "image-segmentation",
    }
)
"""Names of pipelines whose models are those of another task."""


def task_of(config: Any, name: str | None) -> Task:
    """Return the task with a name, or the one that a configuration names.

    Args:
        config: The configuration of the model.
        name: The name of a task; None reads ``architectures`` of the configuration.

    Raises:
        ModelSourceError: If there is no such task, or the configuration names none.
    """
    name = name and ALIASES.get(name, name)
    if name is not None and name not in TASKS:
        raise ModelSourceError(
            f"there is no task {name!r}; there are {', '.join((*TASKS, *ALIASES))}"
        )
    architectures = list(getattr(config, "architectures", None) or ())
    # transformers builds the first one as well.
    for architecture in architectures[:1]:
        for task in _ALL:
            # Decoders of text whose pictures or sound are asked for by name: GIT, Phi-4-multimodal.
            is_text = name is None and architecture.endswith("ForCausalLM")
            if is_text and task.name in ("image-text-to-text", "any-to-any"):
                continue
            if name in (None, task.name) and task.fits(architecture):
                return task
    if name is not None:
        return TASKS[name]
    named = ", ".join(architectures) or "none"
    raise ModelSourceError(
        f"the configuration names no architecture of a known task (architectures: {named})\n"
        f"  give the task: {', '.join(TASKS)}"
    )
