"""Arrays between pages without access: a read or write outside of them ends the process."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from coreai_onnx.runtime.tensors.outputs import Array

Edge = Literal["start", "end"]
"""The edge of an array that lies at a page without access."""

_GUARD = 1 << 22
"""Bytes without access on each side: an index that misses by a row misses them rarely. They take
addresses, not memory."""
_NO_ACCESS, _READ_ONLY = 0, mmap.PROT_READ
_UNWRITTEN = {"start": 0x7F, "end": 0x5A}
"""What outputs hold before a call, by the edge: large numbers, which no result is by chance."""


def guarded_input(array: Array, edge: Edge) -> Array:
    """Return a copy that cannot be written to, with guard pages around it."""
    copy, memory = _guarded(array.shape, array.dtype, edge)
    copy[...] = array
    _protect(memory, _GUARD, len(memory) - 2 * _GUARD, _READ_ONLY)
    return copy


def guarded_output(shape: Sequence[int], dtype: np.dtype[Any], edge: Edge) -> Array:
    """Return an array of large numbers, with guard pages around it."""
    array, _ = _guarded(shape, dtype, edge)
    ctypes.memset(array.ctypes.data, _UNWRITTEN[edge], array.nbytes)
    return array


def _guarded(shape: Sequence[int], dtype: np.dtype[Any], edge: Edge) -> tuple[Array, mmap.mmap]:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    room = max(-(-size // mmap.PAGESIZE), 1) * mmap.PAGESIZE
    memory = mmap.mmap(-1, room + 2 * _GUARD, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _protect(memory, 0, _GUARD, _NO_ACCESS)
    _protect(memory, _GUARD + room, _GUARD, _NO_ACCESS)
    start = _GUARD + (room - size if edge == "end" else 0)
    return np.ndarray(tuple(shape), dtype, buffer=memory, offset=start), memory


def _protect(memory: mmap.mmap, start: int, size: int, access: int) -> None:
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + start
    call = ctypes.CDLL(None, use_errno=True).mprotect
    if call(ctypes.c_void_p(address), ctypes.c_size_t(size), access):
        raise OSError(ctypes.get_errno(), "mprotect failed")
