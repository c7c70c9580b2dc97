"""Exported folders as models of transformers, which its pipelines run, and those of ranks.

The class of the model is transformers' own, without weights: what prepares inputs, generates and
reads results is its code, and its modules run in sessions.
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import transformers

from coreai_onnx.errors import ConversionError, ModelSourceError, failures_as
from coreai_onnx.huggingface.checkpoints.sharding import Style, shard
from coreai_onnx.huggingface.decoders import BATCH, KEPT, PAST, Decoder
from coreai_onnx.huggingface.exporting import DTYPES, export_model
from coreai_onnx.huggingface.folders import copy_companions
from coreai_onnx.huggingface.generation.generating import LanguageModel
from coreai_onnx.huggingface.generation.serving.ranks import RANK_FOLDER, folders_of
from coreai_onnx.huggingface.generation.session_model import (
    SessionModel,
    model_class,
    run,
    without_weights,
)
from coreai_onnx.huggingface.heads.masks import MASKS_FILE, VISION_FILE, MaskModel
from coreai_onnx.huggingface.heads.tasks import task_of
from coreai_onnx.huggingface.sound.parts import SOUND_MODELS
from coreai_onnx.huggingface.sources import CONFIG, load_source, read_config
from coreai_onnx.huggingface.transformers_names import ModelOutput, pipeline_class
from coreai_onnx.huggingface.verification import difference, random_tokens
from coreai_onnx.model.files.new_files import check_new, file_fault, new_folder
from coreai_onnx.model.files.program_files import MERGED_FILE, MODEL_FILE
from coreai_onnx.model.interface import CAPACITY
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.tensors.outputs import Array
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


_CHECKED = ((1, 5), (3, 8))
"""Batch and tokens of the prompts that are checked; a token follows them."""


def export_ranks(
    source: str | PathLike[str] | torch.nn.Module,
    folder: str | PathLike[str],
    ranks: int,
    *,
    plan: Mapping[str, Style] | None = None,
    dtype: str | None = None,
    weights_dtype: str | None = None,
    overwrite: bool = False,
    check: bool = True,
    seed: int = 0,
    **options: Any,
) -> Path:
    """Export a decoder as a file for each rank, which has a part of the weights.

    Args:
        source: As for `export_model`; the model fits into the memory.
        folder: The folder to write, with the folders ``rank_0``, ``rank_1``, …. It appears complete
            or not at all.
        ranks: How many ranks there are.
        plan: The style of each module or parameter that is split, by its name with ``*`` for any
            number: ``ColwiseParallel()`` or ``RowwiseParallel()`` of torch, or a word of
            transformers' plans. None is the plan of transformers, ``model.tp_plan``.
        dtype: As for `export_model`.
        weights_dtype: As for `export_model`.
        overwrite: As for `export_model`.
        check: Whether to compare all ranks together with torch; not with ``quantization``.
        seed: As for `export_model`.
        **options: Further arguments of `export_model`; the cache is growing or static.

    Returns:
        The folder.

    Raises:
        ModelSourceError: If the model cannot be split in this way; as for `export_model`.
        ConversionError: If the ranks differ from torch.
        CoreaiError: As for `export_model`.
    """
    if options.get("cache") == "paged":
        raise ModelSourceError('cache="paged" is for an engine; ranks have a growing or static one')
    path, replaces = Path(folder), tuple(RANK_FOLDER.format(rank) for rank in range(ranks))
    check_new(path, replaces=replaces if overwrite else ())
    if dtype is not None and dtype not in DTYPES:
        raise ModelSourceError(f"dtype {dtype!r} must be one of {', '.join(DTYPES)}")
    loaded = load_source(source, "text-generation", dtype=DTYPES[dtype or "float32"], seed=seed)
    stored = str(loaded.weights_dtype).removeprefix("torch.")
    if dtype in (None, "float32") and stored != "float32":
        weights_dtype = weights_dtype or stored
    with new_folder(path, replaces=replaces if overwrite else ()) as temporary:
        for rank in range(ranks):
            place = temporary / RANK_FOLDER.format(rank)
            part = shard(loaded.model, ranks, rank, plan)
            export_model(
                part, place, task="text-generation", dtype=dtype, weights_dtype=weights_dtype,
                check=False, **options,
            )  # fmt: skip
            copy_companions(loaded.model, loaded.folder, place)
        if check and options.get("quantization") is None:
            _check_ranks(loaded.model, folders_of(temporary))
    return path


def _check_ranks(model: Any, folders: Sequence[Path]) -> None:
    """Compare the logits of ranks, which run in threads, with those of the model in torch."""
    decoder, random, group = Decoder(model), torch.Generator().manual_seed(0), uuid.uuid4().hex
    sessions = [Session(f / MODEL_FILE, group=group, threads=1, prepack=False) for f in folders]
    for batch, length in _CHECKED:
        tokens = random_tokens(model, torch.Size([batch, length + 1]), random)
        sizes = {BATCH: batch, PAST: 0, CAPACITY: 2 * length}
        streams, empty = [session.stream() for session in sessions], _empty(sessions[0], sizes)
        for first, end, cache in ((0, length, empty), (length, length + 1, {})):
            *inputs, _ = decoder.arguments(batch, end - first, first)
            taken = [x for x in inputs if x is not None]
            feeds: dict[str, Any] = dict(zip(decoder.input_names, taken, strict=False))
            feeds |= {"input_ids": tokens[:, first:end], **cache}
            feeds.pop(KEPT, None)
            with torch.no_grad():
                expected = model(tokens[:, :end]).logits[:, first:]
            for rank, logits in enumerate(_logits(streams, feeds)):
                error, limit = difference(logits, expected)
                if not error <= limit:
                    raise ConversionError(
                        f"rank {rank} of {len(folders)} differs from torch: logits by {error:.3g} "
                        f"for {batch} × {end - first} tokens after {first}",
                        advice="the plan may split layers that the model computes together",
                    )


def _empty(session: Session, sizes: Mapping[Any, int]) -> dict[str, Array]:
    """Return a cache without tokens."""
    return {
        info.name: np.zeros([sizes.get(d, d) for d in info.dims], info.numpy_dtype)
        for info in session.state_inputs
    }


def _logits(streams: Sequence[Any], feeds: Mapping[str, Any]) -> list[Any]:
    """Run ranks, each of which waits for the others."""
    with ThreadPoolExecutor(len(streams)) as threads:
        return list(threads.map(lambda stream: stream.run(**feeds)["logits"], streams))
