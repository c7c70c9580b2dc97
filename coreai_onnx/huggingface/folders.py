"""Exported folders: written completely or not at all, with the files beside the model."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coreai_onnx.errors import SaveError, failures_as

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


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder that becomes ``folder`` if the block succeeds, and is removed if it fails.

    Raises:
        SaveError: If ``folder`` exists and is not an empty folder, its parent does not exist, or it
            cannot be written.
    """
    check_new(folder)
    temporary = folder.with_name(f".{folder.name[:100]}.{secrets.token_hex(4)}.tmp")
    try:
        with failures_as(SaveError, f"cannot write {folder}"):
            temporary.mkdir()
            yield temporary
            if folder.is_dir():
                folder.rmdir()
            temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_new(folder: Path) -> None:
    """Check that a folder can be made, so that errors come before the work.

    Raises:
        SaveError: See `new_folder`.
    """
    if not folder.parent.is_dir():
        raise SaveError(f"cannot write {folder}: there is no folder {folder.parent}")
    if folder.is_dir() and any(folder.iterdir()):
        raise SaveError(f"cannot write {folder}: it exists and is not empty; give a new folder")
    if folder.exists() and not folder.is_dir():
        raise SaveError(f"cannot write {folder}: it is a file")


def copy_companions(model: Any, source: Path | None, target: Path) -> None:
    """Write configuration and tokenizer: those of the source folder, or of the model object.

    Args:
        model: The model.
        source: The folder that it came from; None for a model object.
        target: The folder to write to.
    """
    if source is not None:
        files = {file for pattern in _COPIED for file in source.glob(pattern) if file.is_file()}
        for file in sorted(files):
            shutil.copyfile(file, target / file.name)
    if not (target / "config.json").exists():
        model.config.save_pretrained(target)
    settings = getattr(model, "generation_config", None)
    if settings is not None and not (target / "generation_config.json").exists():
        settings.save_pretrained(target)


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file."""
    file.write_text(json.dumps(content, indent=2) + "\n")
