"""Files that source lines stand in: torch's own, and names that mean something elsewhere too."""

from __future__ import annotations

import functools
import os
import site
import sysconfig
from pathlib import Path

import torch

_TORCH = str(Path(torch.__file__).parent) + os.sep


def is_torch(file: str) -> bool:
    """Whether a file is part of torch, or code that torch made up."""
    return file.startswith((_TORCH, "<eval_with_key", "<frozen "))


@functools.lru_cache(maxsize=1024)
def relative_path(file: str) -> str:
    """Return a path without the part that only exists on this machine."""
    folders = [*site.getsitepackages(), sysconfig.get_paths()["purelib"], str(Path.cwd())]
    for folder in sorted(set(folders), key=len, reverse=True):
        if file.startswith(folder + os.sep):
            return file[len(folder) + 1 :]
    return Path(file).name
