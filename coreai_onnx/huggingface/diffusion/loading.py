"""Pipelines of diffusers: folders and objects, and what an exported folder has beside the files."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.diffusion.components import Component
from coreai_onnx.huggingface.diffusion.recording import DECODE, ENCODE, record

INDEX = "model_index.json"
_LEFT_OUT = ("safety_checker", "motion_adapter")
"""Modules without a file: one looks at finished pictures, the weights of one are in the U-Net."""
_LIBRARIES = ("diffusers", "transformers")


def is_pipeline(source: Any) -> bool:
    """Whether a source is a pipeline of diffusers, or its folder."""
    if isinstance(source, str | Path):
        return (Path(source) / INDEX).is_file()
    # Who has made one has imported diffusers.
    diffusers: Any = sys.modules.get("diffusers")
    return diffusers is not None and isinstance(source, diffusers.DiffusionPipeline)


def parts_of(name: str) -> tuple[str, ...]:
    """Return the folders of a module of a pipeline: of an autoencoder two."""
    return (ENCODE, DECODE) if name == "vae" else (name,)


class PipelineModel(torch.nn.Module):
    """The modules of a pipeline, which are exported together.

    Attributes:
        pipeline: The pipeline.
        task: What it makes, as transformers and diffusers name it.
    """

    def __init__(self, pipeline: Any) -> None:
        """Take the modules of a pipeline."""
        super().__init__()
        self.pipeline = pipeline
        modules = {n: x for n, x in pipeline.components.items() if isinstance(x, torch.nn.Module)}
        self.parts = torch.nn.ModuleDict({n: x for n, x in modules.items() if n not in _LEFT_OUT})
        self.task = "text-to-video" if hasattr(pipeline, "video_processor") else "text-to-image"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the modules."""
        return next(p.dtype for p in self.parameters() if p.is_floating_point())

    def components(self) -> Iterator[Component]:
        """Yield the parts to export: text encoders, denoiser, decoder and encoder.

        Raises:
            ModelSourceError: If the pipeline does not run with a text, or a module is not called.
        """
        calls = record(self.pipeline)
        for name, module in self.parts.items():
            names = [part for part in parts_of(name) if part in calls]
            if not names:
                raise ModelSourceError(
                    f"{type(self.pipeline).__name__} is not exported: a run with a prompt does not "
                    f"call its {name} ({type(module).__name__})"
                )
            yield from (Component(part, module, calls[part]) for part in names)

    def save_companions(self, folder: Path, source: Path | None) -> None:
        """Write scheduler, tokenizers and configurations.

        Args:
            folder: The folder to write to.
            source: The folder that the pipeline came from; None for an object.
        """
        for name, part in self.pipeline.components.items():
            if name in self.parts:
                for inner in parts_of(name):
                    write = getattr(part, "save_config", None) or part.config.save_pretrained
                    write(folder / inner)
            elif source is not None and (source / name).is_dir() and name not in _LEFT_OUT:
                # Copied rather than saved: transformers would change formats.
                shutil.copytree(source / name, folder / name)
            elif part is not None and name not in _LEFT_OUT:
                part.save_pretrained(folder / name)
        self.pipeline.save_config(folder)
        index = json.loads((folder / INDEX).read_text())
        index |= {name: [None, None] for name in _LEFT_OUT if name in index}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def load_pipeline(source: Any, dtype: torch.dtype) -> PipelineModel:
    """Return the modules of a pipeline.

    Args:
        source: A folder or a pipeline.
        dtype: The dtype of the weights of a folder; those of an object stay as they are.

    Raises:
        ModelSourceError: If diffusers is not installed or the folder is not complete.
    """
    if not isinstance(source, str | Path):
        return PipelineModel(source)
    path = Path(source)
    index = read_index(path)
    for name, entry in index.items():
        class_of(path, name, entry)
    # A U-Net without motion needs the adapter to become one with it.
    left_out = {"safety_checker": None} if "safety_checker" in index else {}
    with failures_as(ModelSourceError, f"cannot load {path}"):
        pipeline = import_diffusers(path).DiffusionPipeline.from_pretrained(
            path, torch_dtype=dtype, local_files_only=True, **left_out
        )
    return PipelineModel(pipeline)


def import_diffusers(path: Any) -> Any:
    """Return the module.

    Raises:
        ModelSourceError: If it is not installed.
    """
    try:
        return importlib.import_module("diffusers")
    except ModuleNotFoundError as error:
        raise ModelSourceError(
            f"{path} is a pipeline of diffusers, and {error.name} is not installed: "
            "pip install diffusers"
        ) from error


def read_index(folder: Path) -> dict[str, tuple[str, str]]:
    """Return library and class of the components of a folder, by name; without those left out.

    Raises:
        ModelSourceError: If the folder does not have an index, or it is not valid.
    """
    file = folder / INDEX
    if not file.is_file():
        raise ModelSourceError(f"{folder}: there is no {INDEX}; is it the folder of a pipeline?")
    try:
        content = json.loads(file.read_text())
        entries = {name: tuple(x) for name, x in content.items() if isinstance(x, list)}
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ModelSourceError(f"{file}: is not JSON, or incomplete: {error}") from error
    return {
        name: entry
        for name, entry in entries.items()
        if len(entry) == 2 and entry[1] is not None and name not in _LEFT_OUT
    }


def class_of(folder: Path, name: str, entry: tuple[str, str]) -> Any:
    """Return the class of a component.

    Args:
        folder: The folder of the pipeline.
        name: The name of the component.
        entry: Its library and its class.

    Raises:
        ModelSourceError: If it is not a class of diffusers or transformers.
    """
    library, class_name = entry
    if library in _LIBRARIES:
        module = (
            import_diffusers(folder) if library == "diffusers" else importlib.import_module(library)
        )
        cls = getattr(module, class_name, None)
        if cls is not None:
            return cls
    raise ModelSourceError(
        f"{folder / INDEX}: {name} is a {class_name} of {library}, which is not a class of "
        f"{' or '.join(_LIBRARIES)}; code from a model's folder is not run"
    )
