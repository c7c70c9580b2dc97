"""Exported folders as models of transformers, which its pipelines run.

The class of the model is transformers' own, without weights: what prepares inputs, generates and
reads results is its code, and its modules run in sessions.
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.utils import ModelOutput

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.generation.generating import LanguageModel
from coreai_onnx.huggingface.generation.session_model import WithoutWeights
from coreai_onnx.huggingface.sources import CONFIG, read_config
from coreai_onnx.huggingface.tasks import task_of
from coreai_onnx.model.files.new_files import file_fault
from coreai_onnx.model.files.program_files import MERGED_FILE, MODEL_FILE
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.targets.providers import Choice

_COMPONENTS = ("tokenizer", "image_processor", "video_processor", "feature_extractor", "processor")
_DEFAULTS: Mapping[str, Callable[..., torch.Tensor]] = {
    "attention_mask": torch.ones_like,
    "token_type_ids": torch.zeros_like,
}
"""What models compute with if they are given no such input."""


def open_model(
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
        ModelSourceError: If there is no such folder, or no configuration or model in it.
        SessionError: If a model cannot be opened.
    """
    path = Path(folder)
    config = read_config(path / CONFIG)
    how: dict[str, Any] = {"kernels": kernels, "threads": threads, "provider": provider}
    if not file_fault(path / MERGED_FILE):
        return _generator(path, config, how)
    if fault := file_fault(path / MODEL_FILE):
        raise ModelSourceError(f"{path / MODEL_FILE}: {fault}; export the model first")
    session = Session(path / MODEL_FILE, kernels=kernels, threads=threads, providers=provider)
    if session.states:
        return _generator(path, config, how)
    return model_in_session(_class_named(path, config), config, session)


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
        ModelSourceError: As `open_model`; also if there is no such pipeline, or the folder has no
            tokenizer or processor that it needs.
        SessionError: If a model cannot be opened.
    """
    path = Path(folder)
    name = task or task_of(read_config(path / CONFIG), None).name
    with failures_as(ModelSourceError, f"transformers has no pipeline for the task {name!r}"):
        implementation = PIPELINE_REGISTRY.check_task(name)[1]["impl"]
    if isinstance(implementation, str):
        implementation = pkgutil.resolve_name(implementation)
    components = {
        component: str(path)
        for component in _COMPONENTS
        if getattr(implementation, f"_load_{component}", False) is not False
    }
    model = open_model(path, kernels=kernels, threads=threads, provider=provider)
    what = f"{path}: a tokenizer or processor for the task {name!r} is missing or broken"
    with failures_as(ModelSourceError, what):
        return transformers.pipeline(name, model, **{**components, **options})


def model_in_session(cls: type, config: Any, session: Session) -> Any:
    """Return a model of a class of transformers whose ``forward`` runs a session.

    Args:
        cls: The class.
        config: Its configuration.
        session: The session; names of inputs and outputs are those of ``forward``.
    """
    signature = inspect.signature(cls.forward)

    # Pipelines read which arguments a model takes.
    @functools.wraps(cls.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> ModelOutput:
        arguments = signature.bind_partial(self, *args, **kwargs).arguments
        arguments |= arguments.pop("kwargs", {})
        return ModelOutput(run(session, arguments))

    # Without weights, and without the time to draw them.
    with torch.device("meta"), failures_as(ModelSourceError, f"cannot build a {cls.__name__}"):
        return type(cls.__name__, (WithoutWeights, cls), {"forward": forward})(config).eval()


def run(session: Session, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Run a session with arguments of a model, and return the outputs by name.

    Args:
        session: The session.
        arguments: Tensors and options by name.

    Raises:
        ModelSourceError: If a tensor that changes the result is no input of the file.
        InputError: If an input is missing, or has another shape than the file takes.
    """
    tensors = {name: x for name, x in arguments.items() if isinstance(x, torch.Tensor)}
    names = [info.name for info in session.inputs]
    for name, x in tensors.items():
        # A mask of ones, segments of zeros: as if they were not given.
        if name not in names and not (name.endswith("mask") and bool((x == 1).all()) or not x.any()):
            raise ModelSourceError(
                f"the file has no input {name}, which is not what a model assumes without it; "
                f"its inputs are {', '.join(names)}"
            )
    feeds = {name: tensors[name] for name in names if name in tensors}
    for name, default in _DEFAULTS.items():
        if name in names and "input_ids" in feeds:
            feeds.setdefault(name, default(feeds["input_ids"]))
    outputs = session.run(**feeds)
    return {info.name: torch.from_numpy(outputs[info.name]) for info in session.outputs}


def _generator(path: Path, config: Any, how: Mapping[str, Any]) -> Any:
    """Return a model that generates, with the settings of its folder."""
    opened = LanguageModel.open(path, **how)
    if opened.speech is not None:
        return opened.speech.model
    model = opened.as_transformers()
    model.config = config
    return model


def _class_named(path: Path, config: Any) -> type:
    """Return the class of transformers that a configuration names.

    Raises:
        ModelSourceError: If it names none, or transformers does not have it.
    """
    name = next(iter(config.architectures or ()), None)
    cls = getattr(transformers, name or "", None)
    if not isinstance(cls, type):
        raise ModelSourceError(f"{path / CONFIG}: transformers has no class {name}")
    return cls
