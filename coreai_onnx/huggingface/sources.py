"""The models to export: folders of transformers, configurations, loaded models."""

from __future__ import annotations

import copy
import functools
import json
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.export.deferred import deferred_source
from coreai_onnx.huggingface.checkpoints.loading import (
    SMALL,
    deferred,
    exceeds_memory,
    load_quantized,
    quantization_of,
)
from coreai_onnx.huggingface.diffusion.loading import is_pipeline, load_pipeline
from coreai_onnx.huggingface.folders import check_companions, setting_fault
from coreai_onnx.huggingface.heads.sentences import MODULES, embedding_task_of
from coreai_onnx.huggingface.heads.tasks import Task, task_of
from coreai_onnx.huggingface.transformers_names import has_class_for, model_of_config
from coreai_onnx.messages import begin_stage, render, size_text
from coreai_onnx.model.dependencies import needs

CONFIG, GGUF = "config.json", ".gguf"
_INDEX = "model.safetensors.index.json"
_WEIGHTS = ("model.safetensors", _INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json")
_HIDDEN_STATES, _POOLER = ("last_hidden_state", "token_embeddings"), "pooler."
"""Outputs of models without a head, and the layer after them, which they are exported without."""


@dataclass(frozen=True)
class LoadedModel:
    """A model to export.

    Attributes:
        model: The model, for inference.
        task: What is exported of it.
        folder: The folder with its configuration and tokenizer; None for a model object.
        weights_dtype: A dtype that represents the weights exactly: what they were rounded to, or
            that of the source.
        is_deferred: Whether the large parameters have their values in mapped files only.
    """

    model: Any
    task: Task
    folder: Path | None
    weights_dtype: torch.dtype
    is_deferred: bool = False


def load_source(
    source: str | PathLike[str] | torch.nn.Module,
    task: str | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    weights_dtype: torch.dtype | None = None,
    seed: int = 0,
) -> LoadedModel:
    """Load a model of transformers from what a user gives.

    Args:
        source: A folder with configuration and weights, a configuration file, whose model gets
            random weights, or a loaded model.
        task: The name of the task; None reads it from the configuration.
        dtype: The dtype of the loaded weights.
        weights_dtype: A dtype to round them to before; None does not round.
        seed: Seed of the random weights.

    Raises:
        ModelSourceError: If the source is none of these, is incomplete, has an architecture that
            transformers does not know, the model has no head for the task, or a weight exceeds the
            range of a dtype.
    """
    begin_stage("load")
    if not isinstance(source, str | PathLike):
        loaded = _of_pipeline(source, task) if is_pipeline(source) else _of_object(source, task)
        # A copy takes as much memory as the model, so it is made only where a weight changes.
        if {dtype, weights_dtype or dtype} != {loaded.weights_dtype}:  # the given model stays
            loaded = replace(loaded, model=copy.deepcopy(loaded.model).to(dtype))
    else:
        loaded = _of_path(Path(source), task, dtype, seed)
    if weights_dtype is not None:
        if not loaded.is_deferred:
            _round(loaded.model, weights_dtype)
        elif weights_dtype not in (dtype, loaded.weights_dtype):
            raise ModelSourceError(
                f"weights_dtype={str(weights_dtype).removeprefix('torch.')!r}: {source} exceeds "
                "the memory, so that its weights are stored as its files have them, or as dtype"
            )
        loaded = replace(loaded, weights_dtype=weights_dtype)
    # bfloat16 has the range of float32.
    if torch.float16 in (dtype, weights_dtype):
        _check_range(loaded.model)
    return replace(loaded, model=loaded.model.eval())


def _of_path(path: Path, task: str | None, dtype: torch.dtype, seed: int) -> LoadedModel:
    if is_pipeline(path):
        return _of_pipeline(path, task, dtype)
    if path.is_dir():
        config = read_config(path / CONFIG)
        # The configuration is that of a plain encoder; only this file tells that sentences are
        # embedded.
        if task is None and (path / MODULES).is_file():
            with failures_as(ModelSourceError, f"cannot read {path / MODULES}"):
                task = embedding_task_of(path)
        chosen = task_of(config, task)
        # transformers reports a shard that is missing late, and in words about its hub.
        _check_weights(path)
        check_companions(path)
        model_class = _class_of(config, chosen)
        quantization = quantization_of(config, path)
        if quantization is not None:
            with failures_as(ModelSourceError, f"cannot load {path}"):
                build = functools.partial(model_of_config, model_class)
                model = load_quantized(path, config, quantization, build, dtype)
            return LoadedModel(model, chosen, path, dtype)  # its scales are not narrowed
        large = chosen.name == "text-generation" and exceeds_memory(path, config, dtype)
        with failures_as(ModelSourceError, f"cannot load {path}"):
            # In the dtype of the files, transformers maps them.
            model, report = model_class.from_pretrained(
                path, dtype="auto" if large else dtype, local_files_only=True,
                output_loading_info=True,
            )  # fmt: skip
        # transformers only warns about such weights.
        _check_complete(path, chosen, config, report["missing_keys"])
        if large:
            with failures_as(ModelSourceError, f"cannot load {path}"):
                whole = deferred(model, functools.partial(model_of_config, model_class), dtype)
            return LoadedModel(whole, chosen, path, model.dtype, is_deferred=True)
        return LoadedModel(model, chosen, path, _dtype_of(config))
    if path.suffix == GGUF and path.is_file():
        return _of_gguf(path, task, dtype)
    if not path.is_file():
        raise ModelSourceError(
            f"{path}: no such folder or file\n  give a local folder of transformers with "
            "config.json and weights, or a config.json; nothing is downloaded"
        )
    config = read_config(path)
    chosen = task_of(config, task)
    check_companions(path.parent)
    model_class = _class_of(config, chosen)
    # transformers draws weights from the global generator.
    torch.manual_seed(seed)
    with failures_as(ModelSourceError, f"cannot build the model of {path}"):
        model = model_of_config(model_class, config)
    return LoadedModel(model.to(dtype), chosen, path.parent, _dtype_of(config))


def _of_gguf(path: Path, task: str | None, dtype: torch.dtype) -> LoadedModel:
    try:
        from coreai_onnx.huggingface.checkpoints.gguf.loading import (
            load_gguf,
            read_config,
            save_tokenizer,
        )
    except ModuleNotFoundError as error:
        if error.name != "gguf":
            raise
        raise ModelSourceError(
            f"{path}: the gguf package is not installed: pip install gguf"
        ) from error
    config = read_config(path)
    chosen = task_of(config, task)
    build = functools.partial(model_of_config, _class_of(config, chosen))
    model = load_gguf(path, config, build, dtype)
    folder = Path(tempfile.mkdtemp(prefix="coreai_onnx_gguf_"))
    weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
    save_tokenizer(path, folder, config.model_type)
    return LoadedModel(model, chosen, folder, _exact_dtype(model, dtype))


def _exact_dtype(model: Any, dtype: torch.dtype) -> torch.dtype:
    """Return a dtype of 16 bits that represents all weights in floating point, or the given one."""
    for narrow in (torch.bfloat16, torch.float16):
        if all(torch.equal(weight.to(narrow).to(dtype), weight) for weight in model.parameters()):
            return narrow
    return dtype


def _of_object(model: Any, task: str | None) -> LoadedModel:
    if not isinstance(model, transformers.PreTrainedModel):
        raise ModelSourceError(
            f"a {type(model).__name__} is not a model of transformers; convert any module with "
            "coreai_onnx.convert"
        )
    name = type(model).__name__
    chosen = task_of(_Architecture([name]), task)
    if task is not None and not chosen.fits(name):
        raise ModelSourceError(f"{name} has no head for the task {task!r}")
    return LoadedModel(model, chosen, None, model.dtype)


def _of_pipeline(source: Any, task: str | None, dtype: torch.dtype = torch.float32) -> LoadedModel:
    model = load_pipeline(source, dtype)
    if task not in (None, model.task):
        raise ModelSourceError(
            f"{type(model.pipeline).__name__} is for {model.task}; it has no task {task!r}"
        )
    folder = source if isinstance(source, Path) else None
    return LoadedModel(model, Task(model.task, "DiffusionPipeline"), folder, model.dtype)


def _dtype_of(config: Any) -> torch.dtype:
    """Return the dtype of the weights that a configuration names; float32 if it names none."""
    dtype = config.get_text_config().dtype if config.dtype is None else config.dtype
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


@torch.no_grad()
def _round(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Round the parameters to another dtype, and convert them back."""
    # One at a time and in place: the model is never in memory twice.
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.dtype != dtype:
            parameter.copy_(parameter.to(dtype))


def _check_range(model: torch.nn.Module) -> None:
    """Check that no weight became infinite.

    Raises:
        ModelSourceError: If a weight is infinite.
    """
    for name, parameter in model.named_parameters():
        source = deferred_source(parameter)
        values = parameter if source is None else source
        # A part at a time: the values may be mapped.
        rows = max(1, SMALL // max(1, values[0].numel())) if values.dim() > 1 else SMALL
        parts = values.split(rows) if values.dim() else [values]
        if values.is_floating_point() and any(bool(x.half().isinf().any()) for x in parts):
            raise ModelSourceError(f"the weight {name} has values beyond the range of float16")


@dataclass(frozen=True)
class _Architecture:
    architectures: list[str]


def _class_of(config: Any, task: Task) -> Any:
    """Return the class that a configuration names, if it has the head of the task.

    Otherwise that of transformers, which may be another one: of a T5 encoder, the whole T5.

    Raises:
        LibraryVersionError: If transformers is too old for the task.
        ModelSourceError: If transformers has no such model for the architecture.
    """
    for name in list(getattr(config, "architectures", None) or ())[:1]:
        model_class = getattr(transformers, name, None)
        if model_class is not None and task.fits(name):
            return model_class
    chosen = getattr(transformers, task.auto_class, None)
    if chosen is None:
        raise needs("transformers", "5.11", f"the task {task.name!r}")
    if not has_class_for(chosen, config):
        raise ModelSourceError(
            f"transformers has no {config.model_type} model with a head for the task {task.name!r}"
        )
    return chosen


def structure(path: Path) -> str:
    """Return a table of the parameters of a model without reading weights, layers counted as one.

    Args:
        path: A configuration file; no weights are needed.

    Raises:
        ModelSourceError: As for `load_source`.
    """
    config = read_config(path)
    with torch.device("meta"), failures_as(ModelSourceError, f"cannot build the model of {path}"):
        model = model_of_config(_class_of(config, task_of(config, None)), config)
    counts: dict[tuple[str, str], list[int]] = {}
    for name, weight in model.named_parameters():
        key = re.sub(r"\.\d+(?=\.)", ".*", name), str(list(weight.shape))
        counts.setdefault(key, []).append(weight.numel())
    rows = [(name, shape, str(len(n)), f"{sum(n):,}") for (name, shape), n in counts.items()]
    total, dtype = sum(map(sum, counts.values())), _dtype_of(config)
    return (
        f"{type(model).__name__}: {total:,} parameters, {size_text(total * dtype.itemsize)} in "
        f"{str(dtype).removeprefix('torch.')}\n\n"
        f"{render(('parameter', 'shape', 'count', 'elements'), rows)}"
    )


def read_config(path: Path) -> Any:
    """Read a configuration.

    Raises:
        ModelSourceError: If it is missing or broken, or names an unknown architecture.
    """
    if not path.is_file():
        raise ModelSourceError(f"{path.parent}: there is no {path.name}; is it a model's folder?")
    try:
        content = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ModelSourceError(f"{path}: is not JSON, or incomplete: {error}") from error
    kind = content.get("model_type") if isinstance(content, dict) else None
    if not isinstance(kind, str):
        raise ModelSourceError(f"{path}: has no model_type; it is not a configuration of a model")
    if kind not in transformers.CONFIG_MAPPING:
        raise ModelSourceError(
            f"{path}: transformers {transformers.__version__} does not know the architecture "
            f"{kind!r}\n  update transformers; code from a model's folder is not run"
        )
    if fault := setting_fault(content):
        raise ModelSourceError(f"{path}: {fault}")
    with failures_as(ModelSourceError, f"{path}: the configuration is not valid"):
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
        # Old files have the numbers of classes as strings, and pipelines take them as indices.
        labels = getattr(config, "label2id", None) or {}
        if any(isinstance(number, str) for number in labels.values()):
            config.label2id = {label: int(number) for label, number in labels.items()}
        return config


def _check_weights(folder: Path) -> None:
    """Check that all weight files are there and complete.

    Raises:
        ModelSourceError: If one is missing or incomplete.
    """
    files = [name for name in _WEIGHTS if (folder / name).is_file()]
    if not files:
        raise ModelSourceError(
            f"{folder}: there are no weights ({' or '.join(_WEIGHTS[:2])})\n"
            f"  for random weights, give {folder / CONFIG} itself"
        )
    # Files of pickles are not opened for a check: they can run code.
    if not files[0].endswith(".safetensors") and files[0] != _INDEX:
        return
    for file in _shards(folder) if files[0] == _INDEX else [folder / files[0]]:
        if not file.is_file():
            raise ModelSourceError(f"{folder}: {file.name} is missing: the download is incomplete")
        _check_safetensors(file)


def _check_complete(path: Path, task: Task, config: Any, missing: Iterable[str]) -> None:
    """Refuse weights that the files lack: transformers makes random ones.

    Raises:
        ModelSourceError: If there are such weights.
    """
    names = sorted(missing)
    # Nothing that is exported reads the pooler.
    if task.outputs[0] in _HIDDEN_STATES:
        names = [name for name in names if not name.startswith(_POOLER)]
    if not names:
        return
    architectures = getattr(config, "architectures", None) or ("an unknown architecture",)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    raise ModelSourceError(
        f"{path}: there are no weights {', '.join(names[:3])}{more}, which a model for {task.name} "
        f"has\n  the weights are those of {', '.join(architectures)}: it has no head for this "
        "task, or the files are incomplete"
    )


def _shards(folder: Path) -> list[Path]:
    index = folder / _INDEX
    try:
        names = json.loads(index.read_text())["weight_map"].values()
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise ModelSourceError(f"{index}: is not an index of weights: {error!r}") from error
    return [folder / name for name in dict.fromkeys(names)]


def _check_safetensors(file: Path) -> None:
    """Check that a file of weights is complete.

    Raises:
        ModelSourceError: If the file is incomplete or not in this format.
    """
    try:
        # The header has the end of the last tensor, so that opening finds a file that was cut off.
        with safe_open(file, "pt"):
            return
    except SafetensorError as error:
        raise ModelSourceError(
            f"{file}: is not a safetensors file, or its download is incomplete: {error}"
        ) from error
