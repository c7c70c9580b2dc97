"""Folders of transformers and their configuration."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.messages import printable, render, size_text
from coreai_onnx.program import OnnxProgram

_COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "*.model",
    "*processor_config.json",
)
"""Files of a transformers folder that are not weights, as patterns."""
_READ_AT_THE_TOP = ("qwen2_vl",)
"""Models of whose text_config transformers.js 4.3.1 knows nothing: it reads the sizes above it."""
_SIZES_OF_CACHES = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"
)  # fmt: skip
_PARTS = ("text_encoder*", "unet", "transformer", "vae_encoder", "vae_decoder", "image_encoder")
_OF_PIPELINES = (
    "model_index.json",
    "scheduler/scheduler_config.json",
    *(f"{folder}/{file}" for folder in _PARTS for file in ("config.json", "*.onnx", "*.onnx.data")),
    *(f"{folder}/{file}" for folder in ("tokenizer*", "feature_extractor") for file in _COPIED),
)
WRITTEN = (
    *_COPIED,
    "*.onnx",
    "*.onnx.data",
    "genai_config.json",
    "vocoder_config.json",
    "*coreai_onnx_ops*",
    *_OF_PIPELINES,
)
"""Files of an exported folder, as patterns."""


def copy_companions(model: Any, source: Path | None, target: Path) -> None:
    """Write the configuration and tokenizer of the source folder, or of the model object.

    Args:
        model: The model.
        source: The folder that it came from; None for a model object.
        target: The folder to write to.
    """
    # Files are copied rather than saved by transformers, which would change settings and formats.
    if source is not None:
        for file in _companions(source):
            shutil.copyfile(file, target / file.name)
    # The source may be a single configuration of another name.
    if not (target / "config.json").exists():
        config = copy.deepcopy(model.config)
        # As transformers does when it saves a model: readers choose the class by it.
        config.architectures = config.architectures or [type(model).__name__]
        config.save_pretrained(target)
    if getattr(model.config, "model_type", "") in _READ_AT_THE_TOP:
        config = json.loads((target / "config.json").read_text())
        of_text = {name: config.get("text_config", {}).get(name) for name in _SIZES_OF_CACHES}
        present = {name: value for name, value in of_text.items() if value is not None}
        write_json(target / "config.json", present | config)
    settings = getattr(model, "generation_config", None)
    if settings is not None and not (target / "generation_config.json").exists():
        settings.save_pretrained(target)


def check_companions(source: Path) -> None:
    """Check that the JSON files of a tokenizer and a configuration are complete.

    Raises:
        ModelSourceError: If a file is not valid JSON.
    """
    for file in _companions(source):
        if file.suffix == ".json":
            try:
                json.loads(file.read_text())
            except ValueError as error:
                raise ModelSourceError(f"{file}: is not JSON, or incomplete: {error}") from error


def _companions(source: Path) -> list[Path]:
    return sorted({file for name in _COPIED for file in source.glob(name) if file.is_file()})


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file."""
    file.write_text(json.dumps(content, indent=2) + "\n")


# Larger numbers overflow in torch, with an error that does not name the setting.
_INT64 = 2**63
# Far beyond any model: a wrong number must end in an error, and not in a machine without memory.
_MOST_LAYERS = 10_000
_MOST_ELEMENTS = 2**31 - 1
_LAYERS = "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers"
_SIZES = (
    "vocab_size hidden_size d_model n_embd num_attention_heads n_head num_heads "
    "encoder_attention_heads decoder_attention_heads"
)
_LIMITS = MappingProxyType(
    {
        **dict.fromkeys(_LAYERS.split(), _MOST_LAYERS),
        **dict.fromkeys(_SIZES.split(), _MOST_ELEMENTS),
    }
)
"""The largest value of the settings that every model with them has; the smallest is 1."""


def setting_fault(settings: Mapping[str, Any]) -> str:
    """Return the first setting with which no model can be built, or an empty string.

    Args:
        settings: The content of a ``config.json``, with configurations of parts such as
            ``text_config``.
    """
    for name, value in settings.items():
        fault = ""
        if isinstance(value, Mapping):
            fault = setting_fault(value)
            if fault:
                return f"{name}.{fault}"
        # bool is a subclass of int.
        elif isinstance(value, bool) or not isinstance(value, int | float):
            continue
        # JSON of Python admits NaN.
        elif isinstance(value, float) and math.isnan(value):
            fault = "must be a number"
        elif isinstance(value, int) and not -_INT64 <= value < _INT64:
            fault = "must be a 64-bit integer"
        elif name in _LIMITS and not 1 <= value <= _LIMITS[name]:
            fault = f"must be from 1 to {_LIMITS[name]:,}"
        if fault:
            return f"{name} is {value!r:.40}, and {fault}"
    return ""


@dataclass(frozen=True)
class ExportedFolder:
    """What an export wrote; prints as a table.

    Attributes:
        path: The folder.
        task: The task of the model.
        programs: The converted programs, by the names of their files.
        files: The files, sorted by name.
    """

    path: Path
    task: str
    programs: Mapping[str, OnnxProgram]
    files: tuple[Path, ...]

    @property
    def program(self) -> OnnxProgram:
        """The program of the model, or of its decoder."""
        return list(self.programs.values())[-1]

    def __str__(self) -> str:
        """Return the files with their sizes."""
        names = [(file.relative_to(self.path).as_posix(), file) for file in self.files]
        rows = [(name, size_text(file.stat().st_size)) for name, file in names]
        return f"{printable(str(self.path))}: {self.task}\n{render(('file', 'size'), rows)}"
