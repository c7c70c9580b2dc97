"""The files beside the model in exported folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coreai_onnx.errors import ModelSourceError

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
WRITTEN = (*_COPIED, "*.onnx", "*.onnx.data", "genai_config.json", "*coreai_onnx_ops*")
"""Files of an exported folder, as patterns."""


def copy_companions(model: Any, source: Path | None, target: Path) -> None:
    """Write configuration and tokenizer: those of the source folder, or of the model object.

    Args:
        model: The model.
        source: The folder that it came from; None for a model object.
        target: The folder to write to.
    """
    if source is not None:
        for file in _companions(source):
            shutil.copyfile(file, target / file.name)
    if not (target / "config.json").exists():
        model.config.save_pretrained(target)
    settings = getattr(model, "generation_config", None)
    if settings is not None and not (target / "generation_config.json").exists():
        settings.save_pretrained(target)


def check_companions(source: Path) -> None:
    """Check that the JSON files of a tokenizer and a configuration are complete.

    Raises:
        ModelSourceError: If one is not JSON.
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
