"""Files that source lines stand in: torch's own, and names that mean something elsewhere too."""

from __future__ import annotations

import functools
import os
import site
import sysconfig
from pathlib import Path

import torch

_TORCH = str(Path(torch.__file__).parent) + os.sep
_OURS = str(Path(__file__).parent.parent) + os.sep


def is_torch(file: str) -> bool:
    """Whether a file is part of torch, or code that torch made up."""
    return file.startswith((_TORCH, "<eval_with_key", "<frozen "))


def is_ours(file: str) -> bool:
    """Whether a file is part of this package."""
    return file.startswith(_OURS)


def is_users(file: str) -> bool:
    """Whether a file is of the user's model: neither torch's nor of this package.

    A recognized block is called by the line of the model that called the block, not by what took
    its place.
    """
    return not is_torch(file) and not is_ours(file)


@functools.lru_cache(maxsize=1024)
def relative_path(file: str) -> str:
    """Return a path without the part that only exists on this machine."""
    folders = [*site.getsitepackages(), sysconfig.get_paths()["purelib"], str(Path.cwd())]
    for folder in sorted(set(folders), key=len, reverse=True):
        if file.startswith(folder + os.sep):
            return file[len(folder) + 1 :]
    return Path(file).name
