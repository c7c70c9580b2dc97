"""Source files: whether they belong to torch, this package or the user, and portable names."""

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
    """Whether a file is part of torch, or code that torch generated."""
    return file.startswith((_TORCH, "<eval_with_key", "<frozen "))


def is_ours(file: str) -> bool:
    """Whether a file is part of this package."""
    return file.startswith(_OURS)


def is_users(file: str) -> bool:
    """Whether a file belongs to the user's model: neither to torch nor to this package.

    The source line of a recognized block is the line of the model that calls it, not a line of its
    replacement.
    """
    return not is_torch(file) and not is_ours(file)


@functools.lru_cache(maxsize=1024)
def relative_path(file: str) -> str:
    """Return a path without the part that is specific to this machine."""
    folders = [*site.getsitepackages(), sysconfig.get_paths()["purelib"], str(Path.cwd())]
    for folder in sorted(set(folders), key=len, reverse=True):
        if file.startswith(folder + os.sep):
            return file[len(folder) + 1 :]
    return Path(file).name
