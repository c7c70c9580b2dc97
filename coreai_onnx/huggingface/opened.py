"""Exported folders as models of transformers, which its pipelines run.

The class of the model is transformers' own, without weights: what prepares inputs, generates and
reads results is its code, and its modules run in sessions.
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import transformers

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.generation.generating import LanguageModel
from coreai_onnx.huggingface.generation.session_model import (
    SessionModel,
    model_class,
    run,
    without_weights,
)
from coreai_onnx.huggingface.heads.masks import MASKS_FILE, VISION_FILE, MaskModel
from coreai_onnx.huggingface.heads.tasks import task_of
from coreai_onnx.huggingface.sound.parts import SOUND_MODELS
from coreai_onnx.huggingface.sources import CONFIG, read_config
from coreai_onnx.huggingface.transformers_names import ModelOutput, pipeline_class
from coreai_onnx.model.files.new_files import file_fault
from coreai_onnx.model.files.program_files import MERGED_FILE, MODEL_FILE
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.targets.providers import Choice

_COMPONENTS: Mapping[str, str] = MappingProxyType(
    {
        "tokenizer": "AutoTokenizer",
        "image_processor": "AutoImageProcessor",
        "video_processor": "AutoVideoProcessor",
        "feature_extractor": "AutoFeatureExtractor",
        "processor": "AutoProcessor",
    }
)
"""What pipelines take beside a model, and the class of transformers that reads it."""


def open_folder(
    folder: str | PathLike[str],
    *,
    kernels: bool | None = None,
    threads: int | None = None,
    provider: Choice | None = None,
) -> Any:
    """Open a folder that `export_model` wrote as a model of transformers.

    ``pipeline``, processors and ``generate`` of transformers take it in place of the model itself.

    Args:
        folder: The folder.
        kernels: As for `session`.
        threads: As for `session`.
        provider: As for `session`.

    Returns:
        A ``transformers.PreTrainedModel`` without weights, of the class that the folder's
        configuration names; with a decoder alone, `SessionModel`.

    Raises:
        ModelSourceError: If the folder does not exist, or does not have a configuration or model.
        SessionError: If a model cannot be opened.
    """
    path = Path(folder)
    config = read_config(path / CONFIG)
    how: dict[str, Any] = {"kernels": kernels, "threads": threads}

    def open_file(name: str) -> Session:
        return Session(path / name, providers=provider, **how)

    for alone, (methods, files) in SOUND_MODELS.items():
        if not file_fault(path / alone):
            model = without_weights(model_class(config, path / CONFIG), config, {}, methods)
            model.open(path, [open_file(file) for file in files])
            return model
    if not file_fault(path / MERGED_FILE):
        return _generator(path, config, {**how, "provider": provider})
    if not file_fault(path / MASKS_FILE):
        model = without_weights(model_class(config, path / CONFIG), config, {}, MaskModel)
        model.sessions = [open_file(file) for file in (VISION_FILE, MASKS_FILE)]
        return model
    if fault := file_fault(path / MODEL_FILE):
        raise ModelSourceError(f"{path / MODEL_FILE}: {fault}; export the model first")
    session = open_file(MODEL_FILE)
    if session.states:
        return _generator(path, config, {**how, "provider": provider})
    return _with_forward(model_class(config, path / CONFIG), config, session)


def pipeline(
    folder: str | PathLike[str],
    task: str | None = None,
    *,
    kernels: bool | None = None,
    threads: int | None = None,
    provider: Choice | None = None,
    **options: Any,
) -> Any:
    """Return transformers' ``pipeline`` that runs a folder.

    ```python
    classify = coreai_onnx.huggingface.pipeline("my_bert_onnx")
    classify("What a day!")
    ```

    Args:
        folder: A folder that `export_model` wrote, with its tokenizer or processor.
        task: The task of the pipeline; None is that of the model.
        kernels: As for `session`.
        threads: As for `session`.
        provider: As for `session`.
        **options: As for ``transformers.pipeline``.

    Raises:
        ModelSourceError: As `open_folder`; also if transformers does not have the pipeline, or the
            folder does not have the tokenizer or processor that it needs.
        SessionError: If a model cannot be opened.
    """
    path = Path(folder)
    name = task or task_of(read_config(path / CONFIG), None).name
    with failures_as(ModelSourceError, f"transformers has no pipeline for the task {name!r}"):
        implementation = pipeline_class(name)
    if isinstance(implementation, str):
        implementation = pkgutil.resolve_name(implementation)
    components: dict[str, Any] = {}
    for component, auto_class in _COMPONENTS.items():
        is_needed = getattr(implementation, f"_load_{component}", False)
        if is_needed and component not in options:
            what = f"{path}: the {component} for the task {name!r} is missing or broken"
            with failures_as(ModelSourceError, what):
                read = getattr(transformers, auto_class).from_pretrained
                components[component] = read(path, local_files_only=True)
        elif is_needed is None:  # transformers reads those that are there
            components[component] = str(path)
    model = open_folder(path, kernels=kernels, threads=threads, provider=provider)
    with failures_as(ModelSourceError, f"{path}: no pipeline for the task {name!r}"):
        return transformers.pipeline(name, model, **{**components, **options})


def _with_forward(cls: Any, config: Any, session: Session) -> Any:
    """Return a model of a class of transformers whose ``forward`` runs a session."""
    signature = inspect.signature(cls.forward)

    # Pipelines read which arguments a model takes.
    @functools.wraps(cls.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> ModelOutput:
        arguments = signature.bind_partial(self, *args, **kwargs).arguments
        return ModelOutput(run(session, arguments | arguments.pop("kwargs", {})))

    return without_weights(cls, config, {"forward": forward})


def _generator(path: Path, config: Any, how: Mapping[str, Any]) -> Any:
    """Return a model that generates, with the settings of its folder."""
    opened = LanguageModel.open(path, **how)
    if opened.speech is not None:
        return opened.speech.model
    model = opened.as_transformers()
    if not isinstance(model, SessionModel):
        return model  # of pictures or sound: of transformers' own class already
    # Captions of BLIP have an encoder and a decoder, which its configuration does not say.
    config.is_encoder_decoder = opened.encoder is not None
    model.config = config
    # Pipelines tell kinds of models by the names of their classes.
    name = next(iter(config.architectures or ()), SessionModel.__name__)
    model.__class__ = type(name, (type(model),), {})
    return model
