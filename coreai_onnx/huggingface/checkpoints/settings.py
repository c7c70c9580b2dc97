"""Settings of a checkpoint's configuration and its tensors, read with typed errors."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from coreai_onnx.errors import ModelSourceError, failures_as

COMMON = frozenset({"quant_method", "modules_to_not_convert", "dequantize"})
"""The layers of ``modules_to_not_convert`` have no codes in the files, which is what is read."""
_OFF: tuple[object, ...] = (None, False, "", [], {}, ())


def check_settings(what: str, settings: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Refuse settings that are not read but may change what a layer computes.

    Args:
        what: The part of the configuration, for the message.
        settings: The settings; those that are None, False or empty are off.
        allowed: The names of those that are read, or change nothing.

    Raises:
        ModelSourceError: If another one is set.
    """
    for name, value in settings.items():
        if name not in allowed and value not in _OFF:
            raise ModelSourceError(
                f"{what}: the setting {name} = {reprlib.repr(value)} is not supported\n"
                "  if it does not change what layers compute, remove it from config.json"
            )


def matches(pattern: str, path: str) -> bool:
    """Whether a regular expression matches the start of a path.

    Raises:
        ModelSourceError: If the pattern is not valid.
    """
    with failures_as(ModelSourceError, f"the pattern {pattern!r} of layers is not valid"):
        # ``match`` rather than ``fullmatch``, as the libraries that write the patterns.
        return re.match(pattern, path) is not None


_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class Checkpoint:
    """Named tensors in the files of a folder.

    Args:
        files: The file of each tensor.

    Attributes:
        unread: The names of tensors that were not read.

    Raises:
        ModelSourceError: On access, if a tensor is missing or cannot be read.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        """Keep the names; nothing is read yet."""
        self._files, self.unread = files, set(files)

    @classmethod
    def of(cls, folder: Path) -> Checkpoint:
        """Return the tensors of a folder.

        Raises:
            ModelSourceError: If it has no safetensors files.
        """
        # An index names the files of all tensors; only a checkpoint of a single file has none.
        if (folder / _INDEX).is_file():
            with failures_as(ModelSourceError, f"cannot read {folder / _INDEX}"):
                table = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"]
                return cls({name: folder / file for name, file in table.items()})
        path = folder / _ONE
        if not path.is_file():
            raise ModelSourceError(f"{folder}: quantized weights are read from {_ONE} only")
        with failures_as(ModelSourceError, f"cannot read {path}"), safe_open(path, "pt") as file:
            return cls(dict.fromkeys(file.keys(), path))

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all tensors."""
        return iter(self._files)

    def __contains__(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return name in self._files

    def __getitem__(self, name: str) -> torch.Tensor:
        """Read a tensor."""
        if name not in self._files:
            raise ModelSourceError(f"the checkpoint has no tensor {name}; is a file missing?")
        path = self._files[name]
        # Opened for each tensor: shards are mapped, and not all of them stay open.
        with failures_as(ModelSourceError, f"cannot read {path}"), safe_open(path, "pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        # What stays in here when all layers are loaded may be a part that was ignored.
        self.unread.discard(name)
        return tensor

    def get(self, name: str) -> torch.Tensor | None:
        """Read a tensor, or return None if the checkpoint does not have it."""
        if name not in self:
            return None
        return self[name]
