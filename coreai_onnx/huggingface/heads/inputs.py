"""The inputs of models that run once: their names, examples and dynamic dims."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch.export import Dim

from coreai_onnx.huggingface.decoders import BATCH, SEQUENCE
from coreai_onnx.huggingface.heads.tasks import Task
from coreai_onnx.huggingface.media.examples import spectrogram_size
from coreai_onnx.huggingface.media.model_part import ModelInput

KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "text": ("input_ids",),
        "image": ("pixel_values",),
        "video": ("pixel_values",),
        "audio": ("input_values", "input_features"),
        "series": ("past_values",),
    }
)
"""The inputs of each kind; a model takes those that its ``forward`` has."""
SAMPLES = "number_of_samples"
_OF_TEXT = ("bbox", "attention_mask", "token_type_ids")
_ROWS = {"text": 3, "image": 2, "video": 2, "audio": 2, "series": 2}
"""The batch of an example: torch.export must not find two equal."""
_TOKENS, _CHOICES = 8, 5
SAMPLES_OF_EXAMPLE, _FEWEST_SAMPLES = 4000, 800
"""Samples of the example, and the fewest: 50 ms, which most models make two frames of."""
IMAGE_DIMS: Mapping[int, str] = MappingProxyType({2: "height", 3: "width"})
"""The dims of images whose size is dynamic."""
_DEFAULT_IMAGE = 224
_CLAP_FRAMES = 1001
"""10 seconds at 48 kHz in steps of 480 samples, the only length that CLAP's processor makes."""
_QUERIES = 3
"""Texts that are searched for in each image."""


def samples_dim(fewest: int = _FEWEST_SAMPLES) -> Any:
    """Return the dynamic dim of samples of sound."""
    return Dim(SAMPLES, min=fewest)


def inputs_of(
    model: Any, task: Task, image_size: tuple[int, int] | None = None
) -> list[ModelInput]:
    """Return the inputs that a model takes for a task, in optimum's order.

    Args:
        model: The model.
        task: The task.
        image_size: Height and width of images if the configuration does not have them.
    """
    taken = inspect.signature(model.forward).parameters
    main = model.main_input_name
    kinds = task.takes or (next((k for k, names in KINDS.items() if main in names), "text"),)
    inputs = [
        _media(model.config, task, kind, name, image_size)
        for kind in kinds
        for name in KINDS[kind]
        if name in taken and kind != "text"
    ]
    if "text" in kinds:
        inputs = [*_texts(model.config, task, ("input_ids",)), *inputs]
        inputs += _texts(model.config, task, [name for name in _OF_TEXT if name in taken])
    return inputs


def _texts(config: Any, task: Task, names: Sequence[str]) -> list[ModelInput]:
    batch = f"text_{BATCH}" if task.separate else BATCH
    choices = (_CHOICES,) if task.name == "multiple-choice" else ()
    searched = task.name == "zero-shot-object-detection"
    rows = _ROWS["image"] * _QUERIES if searched else _ROWS["text"]
    shape = (rows, *choices, _TOKENS)
    text = getattr(config, "text_config", None)
    positions = getattr(text, "max_position_embeddings", None) if task.separate else None
    # The masks of CLIP have the size of its table of positions.
    sequence = Dim(SEQUENCE, max=positions) if positions else SEQUENCE
    dims = dict(enumerate((batch, *(["number_of_choices"] if choices else []), sequence)))
    # With a single type, models such as RoBERTa ignore the input.
    has_segments = (getattr(config, "type_vocab_size", None) or 0) > 1
    inputs = []
    for name in names:
        if name == "bbox":
            inputs.append(ModelInput(name, (*shape, 4), dims, 0))
        elif name != "token_type_ids" or has_segments:
            inputs.append(ModelInput(name, shape, dims, int(name != "token_type_ids")))
    return inputs


def _media(
    config: Any, task: Task, kind: str, name: str, size: tuple[int, int] | None
) -> ModelInput:
    """Return the input of a picture, a sound or a series; most models fix their sizes."""
    together = "text" in task.takes and not task.separate
    rows = _ROWS["text" if together else kind]
    dims: dict[int, Any] = {0: f"{kind}_{BATCH}" if task.separate else BATCH}
    if kind == "series":
        channels = getattr(config, "num_input_channels", None)
        length = config.context_length
        return ModelInput(name, (rows, length, *([channels] if channels else [])), dims)
    if kind != "audio":
        frames = (config.num_frames,) if kind == "video" else ()
        if task.name == "keypoint-detection":
            rows, dims = 1, {}  # SuperPoint selects the points of each image in a Python loop
        return ModelInput(name, (rows, *frames, *image_size(config, size)), dims)
    spectrogram = _spectrogram_size(config, name)
    if spectrogram:
        return ModelInput(name, (rows, *spectrogram), dims)
    dims[1] = samples_dim()
    if name == "input_values":
        return ModelInput(name, (rows, SAMPLES_OF_EXAMPLE), dims)
    # Frames of Wav2Vec2-BERT.
    return ModelInput(
        name, (rows, SAMPLES_OF_EXAMPLE // 40, config.feature_projection_input_dim), dims
    )


def image_size(config: Any, processed: tuple[int, int] | None = None) -> tuple[int, int, int]:
    """Return channels, height and width of the images that a model takes.

    Args:
        config: The configuration of the model.
        processed: Height and width that the image processor makes.
    """
    # Models of text and images have the size in a configuration inside of theirs.
    for part in ("vision_config", "backbone_config"):
        inner = getattr(config, part, None)
        if getattr(inner, "image_size", None) is not None:
            config = inner
    size = getattr(config, "image_size", None) or processed or _DEFAULT_IMAGE
    height, width = size if isinstance(size, Sequence) else (size, size)
    return getattr(config, "num_channels", 3), int(height), int(width)


def _spectrogram_size(config: Any, name: str) -> tuple[int, ...]:
    """Return the shape of a spectrogram; empty if a model takes samples, or any length."""
    audio = getattr(config, "audio_config", config)
    bins = getattr(audio, "num_mel_bins", None)
    if bins is None or hasattr(config, "feature_projection_input_dim"):
        return ()
    if hasattr(audio, "spec_size"):
        return (1, min(_CLAP_FRAMES, audio.spec_size * (audio.spec_size // bins)), bins)
    if name == "input_values":
        return (audio.max_length, bins)
    return spectrogram_size(audio)
