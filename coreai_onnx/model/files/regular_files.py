"""Whether a path names a file that can be read to its end."""

from __future__ import annotations

from pathlib import Path


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
