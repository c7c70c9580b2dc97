"""Folders that appear complete or not at all, also in the place of an earlier one."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from coreai_onnx.errors import SaveError, failures_as

_HERE = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, since 3.15


@contextmanager
def new_folder(folder: Path, *, replaces: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a folder that becomes ``folder`` if the block succeeds, and is removed if it fails.

    An earlier folder remains until the new one is complete.

    Args:
        folder: The folder.
        replaces: Patterns of the files that an earlier folder may have, see `check_new`.

    Raises:
        SaveError: As `check_new`, or if it cannot be written.
    """
    check_new(folder, replaces=replaces)
    folder = Path(os.path.realpath(folder))
    temporary = _beside(folder)
    try:
        with failures_as(SaveError, f"cannot write {folder}"):
            temporary.mkdir()
            yield temporary
            _put(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_new(folder: Path, *, replaces: Sequence[str] = ()) -> None:
    """Check that a folder can be made, so that errors come before the work.

    Args:
        folder: The folder.
        replaces: Patterns of the files that an earlier folder may have; none refuses any file. It
            is replaced only if it has a ``.onnx`` file and nothing else than these.

    Raises:
        SaveError: If ``folder`` has files that may not be replaced, or its parent does not exist.
    """
    if "\0" in str(folder):
        raise SaveError(f"cannot write {folder}: a folder name cannot hold a NUL character")
    if not folder.parent.is_dir():
        raise SaveError(f"cannot write {folder}: there is no folder {folder.parent}")
    if folder.exists() and not folder.is_dir():
        raise SaveError(f"cannot write {folder}: it is a file")
    there = sorted(folder.iterdir()) if folder.is_dir() else []
    if there and not replaces:
        raise SaveError(
            f"cannot write {folder}: it exists and is not empty; give a new folder, or "
            "overwrite=True (--overwrite)"
        )
    strangers = [x.name for x in there if not x.is_file() or not any(map(x.match, replaces))]
    if there and not any(file.suffix == ".onnx" for file in there):
        strangers = [file.name for file in there]
    if strangers:
        raise SaveError(
            f"cannot replace {folder}: an export does not write {', '.join(strangers[:3])}\n"
            "  give a new folder, or remove this one yourself"
        )


def _put(temporary: Path, folder: Path) -> None:
    if not folder.is_dir():
        temporary.replace(folder)
    elif not any(folder.iterdir()):
        # Windows cannot rename a folder to one that exists, even an empty one.
        folder.rmdir()
        temporary.replace(folder)
    elif not _exchanged(temporary, folder):
        _renamed_in_turn(temporary, folder)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; return whether the system can do that."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def _renamed_in_turn(temporary: Path, folder: Path) -> None:
    """Replace a folder, or leave it as it was; for a moment neither has the name."""
    old = _beside(folder)
    folder.rename(old)
    try:
        temporary.rename(folder)
    except BaseException:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _beside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name[:100]}.{secrets.token_hex(4)}.tmp")
