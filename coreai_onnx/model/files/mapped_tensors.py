"""Weights that stay on the disk: mapped from a checkpoint, or written to a scratch file."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx_ir as ir

from coreai_onnx.errors import SaveError, reason_of

Array = np.ndarray[Any, np.dtype[Any]]
ALIGNMENT = 64
"""Alignment of offsets in a data file: a cache line and the widest vector register."""
LARGE = 1 << 20
"""Minimum size of what is mapped or moved; less is not worth a system call."""
_PUNCH_HOLE = 3  # Linux's FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


class MappedTensor(ir.LazyTensor):
    """A weight in the mapped file of a checkpoint, or its transpose; reading copies nothing.

    Attributes:
        key: Equal for tensors with the same values; comparing their bytes would read them all.
    """

    def __init__(self, source: ir.TensorProtocol, key: Hashable, *, transposed: bool) -> None:
        """Wrap the tensor of a file."""
        self.key, self._source, self._transposed = key, source, transposed
        shape = [int(dim) for dim in source.shape.numpy()]
        super().__init__(
            lambda: ir.Tensor(self.numpy(), dtype=self.dtype, name=self.name),
            dtype=source.dtype,
            shape=ir.Shape(shape[::-1] if transposed else shape),
            name=source.name,
        )

    def numpy(self) -> Array:
        """Return the values, a view of the file."""
        values: Array = self._source.numpy()
        return values.T if self._transposed else values

    def transpose(self) -> MappedTensor:
        """Return the transposed tensor, of the same file."""
        return MappedTensor(self._source, self.key, transposed=not self._transposed)


class WidenedTensor(ir.LazyTensor):
    """A weight whose values are converted from the dtype of its file on each read.

    Attributes:
        stored: The weight as the file has it.
    """

    def __init__(self, stored: MappedTensor, dtype: ir.DataType, name: str) -> None:
        """Convert nothing yet."""
        self.stored = stored
        super().__init__(self._widened, dtype=dtype, shape=stored.shape, name=name)

    def _widened(self) -> ir.TensorProtocol:
        values = self.stored.numpy().astype(self.dtype.numpy())
        return ir.Tensor(np.ascontiguousarray(values), dtype=self.dtype, name=self.name)

    def transpose(self, name: str) -> WidenedTensor:
        """Return the transposed weight."""
        return WidenedTensor(self.stored.transpose(), self.dtype, name)


_scratch: ContextVar[_Scratch | None] = ContextVar("scratch", default=None)


@contextmanager
def scratch_in(folder: Path) -> Iterator[None]:
    """While active, `on_disk` moves arrays to a nameless file in a folder.

    The file exists until the last of its arrays is released, or the process ends in any way.
    """
    scratch = _Scratch(folder)
    token = _scratch.set(scratch)
    try:
        yield
    finally:
        _scratch.reset(token)
        scratch.close()


def on_disk(array: Array) -> Array:
    """Return a large array mapped from the scratch file, if there is one; else the array itself.

    Raises:
        SaveError: If the array cannot be written.
    """
    scratch = _scratch.get()
    return array if scratch is None or array.nbytes < LARGE else scratch.keep(array)


def move(tensor: ir.TensorProtocol, file: BinaryIO, offset: int) -> None:
    """Release the disk that a tensor takes in the scratch file, after it was written to another.

    The disk needs room for all tensors once and for the largest twice. On systems other than Linux
    this does nothing.

    Args:
        tensor: The tensor; nothing is done unless it is an array of `on_disk`.
        file: The file that it was written to, which may be renamed later.
        offset: Its place there.
    """
    scratch = _scratch.get()
    if scratch is not None and sys.platform == "linux":
        scratch.move(tensor, file, offset)


def at_its_place(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor that reads the file that its values were moved to; else the tensor itself."""
    scratch = _scratch.get()
    return tensor if scratch is None else scratch.at_its_place(tensor)


class _Scratch:
    """A file without a name that holds arrays, until `move` gives them another place.

    Args:
        folder: Its folder; the disk of the result, as the folder for temporary files may be memory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None
        self._end = 0
        # By address and size. They stay mapped, so that no other array gets their addresses.
        self._kept: dict[tuple[int, int], tuple[int, Array]] = {}
        self._moved: dict[int, Array] = {}  # by address

    def close(self) -> None:
        """Close the file; the arrays are mapped, and keep it."""
        if self._file is not None:
            with suppress(OSError):  # closing flushes, which may fail again
                self._file.close()

    def keep(self, array: Array) -> Array:
        """Write an array, and return it mapped."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - see close
            offset = self._end + -self._end % ALIGNMENT
            self._file.seek(offset)
            self._file.write(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)
            self._file.flush()
        except OSError as error:
            raise SaveError(
                f"cannot write to {self._folder}: {error.strerror or reason_of(error)}"
            ) from error
        self._end = offset + array.nbytes
        # Copy on write: torch takes no arrays that are read-only.
        mapped = np.memmap(self._file, array.dtype, "c", offset, array.shape)
        self._kept[mapped.ctypes.data, mapped.nbytes] = offset, mapped
        return mapped

    def move(self, tensor: ir.TensorProtocol, file: BinaryIO, offset: int) -> None:
        """See `move`."""
        array = _array_of(tensor) if self._kept else None
        # The bytes of a transpose are written in another order.
        if array is None or self._file is None or not array.flags.c_contiguous:
            return
        start, _ = self._kept.get((array.ctypes.data, tensor.nbytes), (None, None))
        if start is None or array.nbytes != tensor.nbytes:
            return
        file.flush()
        # Mapped first: the new file may be write-only, and has to outlive its present name.
        name = f"/proc/self/fd/{file.fileno()}"
        moved = np.memmap(name, np.uint8, "r", offset, (array.nbytes,))
        library, size = ctypes.CDLL(None), ctypes.c_int64
        hole = self._file.fileno(), _PUNCH_HOLE, size(start), size(array.nbytes)
        if library.fallocate(*hole) == 0:  # not all file systems have holes
            self._moved[array.ctypes.data] = moved

    def at_its_place(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        """See `at_its_place`."""
        array = _array_of(tensor) if self._moved else None
        if array is None:
            return tensor
        address = array.ctypes.data
        # A view of a part of an array has moved with it.
        for start, moved in self._moved.items():
            if start <= address < start + moved.nbytes:
                there: Array = np.ndarray(
                    array.shape, array.dtype, moved, address - start, array.strides
                )
                return ir.Tensor(there, dtype=tensor.dtype, name=tensor.name)
        return tensor


def _array_of(tensor: ir.TensorProtocol) -> Array | None:
    """Return the array of a tensor that is in memory; others are in no scratch file."""
    return None if isinstance(tensor, ir.LazyTensor | ir.StringTensor) else tensor.numpy()


def memory_bytes() -> int:
    """Return the size of the memory that this process may use."""
    if not hasattr(os, "sysconf"):  # on Windows, where an allocation beyond the memory fails
        return sys.maxsize
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # "max", or a system without control groups
        memory = min(memory, int(_GROUP_LIMIT.read_text()))
    return memory
