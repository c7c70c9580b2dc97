"""Files and folders that appear complete or not at all, also in the place of earlier ones."""

from __future__ import annotations

import ctypes
import errno
import io
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from coreai_onnx.errors import SaveError, failures_as

_TEMPORARY_BYTES = 200
"""Bytes of the target's name in its temporary name: a suffix follows, and 255 is the limit."""
# Without it, Windows translates line ends in what is written.
_BINARY = getattr(os, "O_BINARY", 0)


@contextmanager
def all_or_nothing() -> Iterator[NewFiles]:
    """Yield a set of new files that are renamed if the block succeeds, and removed if it fails."""
    files = NewFiles()
    try:
        yield files
        files.commit()
    finally:
        files.discard()


class _New(NamedTuple):
    """A file that is being written, and its temporary name; None to write to the target itself."""

    file: BinaryIO
    temporary: Path | None


class NewFiles:
    """Files written beside their targets under temporary names, and renamed together at the end."""

    def __init__(self) -> None:
        self._files: dict[Path, _New] = {}

    def create(self, target: Path, *, like: Path | None = None) -> BinaryIO:
        """Open a file that becomes ``target``.

        A symbolic link is followed, so that the file it points to is replaced. The new file gets
        the permissions of an existing file, and its owner if the system allows that. A target that
        is not a regular file (a pipe, a terminal, ``/dev/null``) is written to when all files are
        complete.

        Args:
            target: The file.
            like: The file whose permissions a target that does not exist yet gets.

        Raises:
            OSError: The file cannot be created.
        """
        if "\0" in str(target):
            raise OSError(errno.EINVAL, "a file name cannot hold a NUL character")
        if target.is_dir():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if target.exists() and not target.is_file():
            file: BinaryIO = io.BytesIO()
            self._files[target] = _New(file, None)
            return file
        place = Path(os.path.realpath(target))
        # realpath follows every link, except those that lead back to themselves.
        if place.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        temporary = _beside(place)
        model = next((one for one in (place, like) if one is not None and one.is_file()), None)
        # Nobody else may read it before it has the permissions of the file that it replaces.
        mode = 0o666 if model is None else 0o600
        # O_EXCL refuses a file or link that somebody else has put under this name.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode)
        file = os.fdopen(descriptor, "wb")
        self._files[place] = _New(file, temporary)
        if model is not None:
            _take_permissions(descriptor, model.stat())
        return file

    def discard(self) -> None:
        """Close and remove the files that have not been renamed."""
        for new in self._files.values():
            with suppress(OSError):  # closing flushes, which may fail again
                new.file.close()
            if new.temporary is not None:
                new.temporary.unlink(missing_ok=True)

    def commit(self) -> None:
        """Give all files their names, or none of them."""
        renames: dict[Path, Path] = {}
        for target, new in self._files.items():
            if new.temporary is not None:
                renames[target] = new.temporary
                new.file.flush()
                # Some file systems write names before contents: after a power failure, the new name
                # could belong to an empty file.
                os.fsync(new.file.fileno())
                new.file.close()
        for target, new in self._files.items():
            if isinstance(new.file, io.BytesIO):
                _write_to(target, new.file.getvalue())
        _rename_all(renames)
        for folder in {target.parent for target in renames}:
            _sync_folder(folder)


def _take_permissions(descriptor: int, old: os.stat_result) -> None:
    if not hasattr(os, "fchmod"):
        return
    with suppress(OSError):  # only root may change the owner of a file
        os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def _write_to(target: Path, content: bytes) -> None:
    """Write to a pipe or a device, which cannot be undone."""
    with os.fdopen(os.open(target, os.O_WRONLY | _BINARY), "wb") as file:
        file.write(content)


def _rename_all(renames: dict[Path, Path]) -> None:
    """Rename every temporary file to its target, or leave all targets as they were."""
    backups: dict[Path, Path] = {}
    renamed: list[Path] = []
    try:
        for target in renames:
            if target.is_file():
                backups[target] = _keep(target)
        for target, temporary in renames.items():
            temporary.replace(target)
            renamed.append(target)
    except BaseException:
        for target in renamed:
            if target not in backups:
                target.unlink()
        for target, backup in backups.items():
            backup.replace(target)
            backup.unlink(missing_ok=True)  # two names of one file: replace leaves both
        raise
    for backup in backups.values():
        backup.unlink(missing_ok=True)


def _beside(target: Path) -> Path:
    # Cut in bytes, which file systems limit; fsdecode accepts a part of a character.
    name = os.fsdecode(os.fsencode(target.name)[:_TEMPORARY_BYTES])
    return target.with_name(f".{name}.{secrets.token_hex(6)}.tmp")


def _keep(target: Path) -> Path:
    """Give an existing file a second name, from which it can be restored."""
    backup = _beside(target)
    try:
        os.link(target, backup)
    except OSError:  # a file system without hard links
        target.replace(backup)
    return backup


def _sync_folder(folder: Path) -> None:
    """Make renames durable; platforms that cannot sync folders do not need this."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def file_fault(path: Path) -> str:
    """Return why a path does not name a regular file; empty if it does.

    A read of a pipe waits for a writer, and a read of a device such as ``/dev/zero`` never ends.
    """
    try:
        if path.is_file():
            return ""
        if path.is_dir():
            return "is a folder"
        return "is not a regular file" if path.exists() else "no such file"
    except OSError as error:  # a name that is too long, or a folder that may not be searched
        return f"cannot be read: {error.strerror or error}"


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
    strangers = [x.name for x in there if not _is_written(x, replaces)]
    if there and not any(x.suffix == ".onnx" or any(x.glob("*.onnx")) for x in there):
        strangers = [file.name for file in there]
    if strangers:
        raise SaveError(
            f"cannot replace {folder}: an export does not write {', '.join(strangers[:3])}\n"
            "  give a new folder, or remove this one yourself"
        )


def _is_written(path: Path, patterns: Sequence[str]) -> bool:
    """Whether patterns name a file, or every file of a folder: those with a slash."""
    if path.is_file():
        return any("/" not in pattern and path.match(pattern) for pattern in patterns)
    folders = [pattern for pattern in patterns if "/" in pattern]
    inside = list(path.iterdir()) if path.is_dir() else []
    # An empty folder is not of an export.
    return bool(inside) and all(x.is_file() and any(map(x.match, folders)) for x in inside)


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
