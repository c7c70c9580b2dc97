"""Releases the pages of memory-mapped weight files while a model is written.

A weight of a memory-mapped safetensors file takes memory once it is read. Writing a model reads
every weight, so without this the whole file would end up in memory.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

LARGE = 1 << 20
"""Minimum size of a range; smaller ones are not worth a system call."""
_PAGEOUT = 21  # Linux's MADV_PAGEOUT, since 5.4; nothing is lost: changed pages are kept
_MAPS = Path("/proc/self/maps")


def give_back_mapped_files() -> int:
    """Let the system drop the pages of every mapped data file; later reads load them again.

    Libraries and anonymous memory are not affected. On systems other than Linux this does nothing.

    Returns:
        The number of bytes that the system was asked to drop.
    """
    if sys.platform != "linux":
        return 0
    library = ctypes.CDLL(None)
    total = 0
    for start, end in _data_ranges():
        arguments = ctypes.c_void_p(start), ctypes.c_size_t(end - start), ctypes.c_int(_PAGEOUT)
        if library.madvise(*arguments) == 0:
            total += end - start
    return total


def _data_ranges() -> list[tuple[int, int]]:
    """Return the large address ranges that map data files, not code."""
    ranges: list[tuple[str, int, int]] = []
    code = set()
    for line in _MAPS.read_text().splitlines():
        span, permissions, _, _, inode, *path = line.split(maxsplit=5)
        start, end = (int(text, 16) for text in span.split("-"))
        if inode == "0" or not path:
            continue
        ranges.append((path[0], start, end))
        if "x" in permissions:
            code.add(path[0])
    return [
        (start, end) for path, start, end in ranges if path not in code and end - start >= LARGE
    ]
