"""Atomic writes of files, and the check that a path names a regular file."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_TEMPORARY_BYTES = 200
"""Bytes of the target's name in its temporary name: a suffix follows, and 255 is the limit."""
_BINARY = getattr(os, "O_BINARY", 0)


@contextlib.contextmanager
def all_or_nothing() -> Iterator[NewFiles]:
    """Yield a set of new files that are renamed if the block succeeds, and removed if it fails."""
    files = NewFiles()
    try:
        yield files
        files.commit()
    finally:
        files.discard()


@dataclass(frozen=True)
class _New:
    """A file that is being written.

    Attributes:
        file: The open file.
        temporary: Its temporary name; None if the target itself is written to.
    """

    file: BinaryIO
    temporary: Path | None


class NewFiles:
    """Files written beside their targets under temporary names, and renamed together at the end."""

    def __init__(self) -> None:
        """Start without files."""
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
            with contextlib.suppress(OSError):  # closing flushes, which may fail again
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
    with contextlib.suppress(OSError):  # only root may change the owner of a file
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
