"""Models and their weights as files."""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import onnx_ir as ir

from coreai_onnx.errors import CoreaiError, SaveError, reason_of
from coreai_onnx.messages import size_text, without_warnings
from coreai_onnx.model.files.external_data import FileTensor
from coreai_onnx.model.files.mapped_tensors import ALIGNMENT, LARGE, at_its_place, move
from coreai_onnx.model.files.new_files import all_or_nothing
from coreai_onnx.model.inventory import initializers, weights
from coreai_onnx.model.provenance.debug_info import DebugInfo, written_as

AUTO_EXTERNAL_BYTES = 3 << 29
"""A model with more than 1.5 GiB of weights gets a data file; protobuf's limit is 2 GiB."""
# protobuf counts the bytes of a message in a signed 32-bit integer.
PROTOBUF_LIMIT = (1 << 31) - 1
EXTERNAL_TENSOR_BYTES = 1024
"""Smaller tensors are stored in the model file, so that shape constants can be read there."""
HELD_BYTES = 256 << 20
"""Bytes that are read or written before the pages of mapped weight files are released."""


def save_models(
    models: Mapping[Path, ir.Model],
    data_path: Path,
    *,
    external_data: bool | None = None,
    debug_info: DebugInfo = "full",
) -> tuple[Path, ...]:
    """Write models atomically, with their weights in one data file if they are large.

    Everything is first written and synced under temporary names in the target folder, then
    renamed: the data file first, the models right after it. A process that is killed before the
    renames leaves hidden files, ``.<name>.<hex>.tmp``; one that is killed between the renames
    leaves an old model with new data, and the old data under such a name. Entrypoints share the
    data file and the equal weights in it. The output is deterministic. Links, permissions and
    targets that are not regular files are treated as in `NewFiles.create`.

    Args:
        models: Target path to model.
        data_path: Path of the data file, in the same folder.
        external_data: Whether to use the data file; None decides by size.
        debug_info: How the files store debug information.

    Returns:
        The paths written.

    Raises:
        SaveError: If a file cannot be written; existing files are unchanged and no temporary file
            is left.
    """
    largest = max(weights(model)[1] for model in models.values())
    if external_data is None:
        external_data = largest > AUTO_EXTERNAL_BYTES
    if not external_data and largest > PROTOBUF_LIMIT:
        raise SaveError(
            f"{size_text(largest)} of weights do not fit into one .onnx file, at most 2 GiB\n"
            "  save with external_data=True, or leave external_data out"
        )
    if data_path in models:
        raise SaveError(f"cannot write {data_path}: a model and a data file would have this name")
    try:
        with all_or_nothing() as files:
            store: _Store = _in_memory
            if external_data:
                file = files.create(data_path, like=next(iter(models)))
                store = _DataFile(file, data_path.name, merge_equal=len(models) > 1).store
            for path, model in models.items():
                with written_as(model, debug_info):
                    files.create(path).write(_serialized(model, store))
    except CoreaiError:
        raise  # LoadError: a data file that weights are in was changed
    except OSError as error:
        where = ", ".join(str(path) for path in models)
        raise SaveError(
            f"cannot write {where}: {error.strerror or error}\n"
            "  files that were there before are unchanged"
        ) from error
    return (*models, data_path) if external_data else tuple(models)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically.

    Raises:
        SaveError: If it cannot be written.
    """
    try:
        with all_or_nothing() as files:
            files.create(path).write(text.encode())
    except OSError as error:
        raise SaveError(f"cannot write {path}: {error.strerror or error}") from error


def to_proto(model: ir.Model, debug_info: DebugInfo = "full") -> onnx.ModelProto:
    """Return the model as one protobuf message that contains its weights.

    Raises:
        SaveError: If the weights exceed protobuf's limit.
    """
    size = weights(model)[1]
    if size > PROTOBUF_LIMIT:
        raise SaveError(
            f"{size_text(size)} of weights do not fit into one protobuf message (2 GiB)\n"
            "  use save(), which writes them to a data file beside the model"
        )
    with _initializers_as(model, _in_memory), written_as(model, debug_info):
        return _message(model)


def _message(model: ir.Model) -> onnx.ModelProto:
    try:
        with without_warnings():
            return ir.to_proto(model)
    except ir.serde.SerdeError as error:
        raise SaveError(f"the model cannot be written as ONNX\n  {reason_of(error)}") from error


_Store = Callable[[ir.TensorProtocol, str], ir.TensorProtocol]


def _serialized(model: ir.Model, store: _Store) -> bytes:
    with _initializers_as(model, store):
        proto = _message(model)
    serialized: bytes = proto.SerializeToString(deterministic=True)
    return serialized


@contextmanager
def _initializers_as(model: ir.Model, store: _Store) -> Iterator[None]:
    """Replace every initializer, while active, by the tensor that ``store`` returns for it.

    Those that moved from a scratch file to the data file are read from there afterwards.
    """
    kept: list[tuple[ir.Value, ir.TensorProtocol]] = []
    try:
        for value in initializers(model):
            if value.const_value is not None:
                tensor = value.const_value
                if isinstance(tensor, ir.ExternalTensor | FileTensor):
                    tensor.numpy()  # maps the file, which stays readable after it is replaced
                replacement = store(tensor, value.name or "")
                kept.append((value, tensor))
                value.const_value = replacement
        yield
    finally:
        for value, tensor in kept:
            value.const_value = at_its_place(tensor)


def _in_memory(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """Return the tensor in a form that is serialized into the model file."""
    if isinstance(tensor, ir.ExternalTensor):
        return ir.Tensor(
            tensor.numpy(), dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name
        )
    return tensor


class Released:
    """Counts the bytes that are read of mapped files, and lets the system drop them in time."""

    def __init__(self) -> None:
        """Begin with nothing read."""
        self._bytes = 0

    def add(self, nbytes: int) -> None:
        """Count bytes that have been read and are not needed any more."""
        self._bytes += nbytes
        if self._bytes >= HELD_BYTES:
            self._bytes = 0
            give_back_mapped_files()


class _DataFile:
    """A data file being written: tensors at aligned offsets, each tensor once."""

    def __init__(self, file: BinaryIO, location: str, *, merge_equal: bool) -> None:
        self._file = file
        self._location = location
        self._merge_equal = merge_equal
        self._offsets: dict[object, int] = {}
        self._alive: list[ir.TensorProtocol] = []
        self._end = 0
        self._released = Released()

    def store(self, tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
        """Write a tensor and return the reference to it.

        Small tensors and strings, which no data file can hold, are returned unchanged.
        """
        if tensor.dtype == ir.DataType.STRING or tensor.nbytes < EXTERNAL_TENSOR_BYTES:
            return _in_memory(tensor, name)
        tensor = at_its_place(tensor)
        # Hashing reads every weight once more. It pays where entrypoints were exported from one
        # module, each with copies of its weights.
        key: object = (
            hashlib.blake2b(tensor.tobytes()).digest() if self._merge_equal else id(tensor)
        )
        if key not in self._offsets:
            self._alive.append(tensor)  # an id is unique only while its object lives
            self._offsets[key] = self._append(tensor)
        return ir.ExternalTensor(
            self._location,
            self._offsets[key],
            tensor.nbytes,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=name,
        )

    def _append(self, tensor: ir.TensorProtocol) -> int:
        padding = -self._end % ALIGNMENT
        self._file.write(b"\0" * padding)
        offset = self._end + padding
        self._file.write(raw_bytes(tensor))
        self._end = offset + tensor.nbytes
        move(tensor, self._file, offset)
        # 4034 MiB of mapped weights are saved with a peak of 821 MiB: python -m
        # tools.bench.memory --layers 44 --lazy, in docs/internals/performance_log.md.
        self._released.add(tensor.nbytes)
        return offset


def raw_bytes(tensor: ir.TensorProtocol) -> bytes | memoryview:
    """Return a tensor's bytes as ONNX stores them, without a copy if the memory layout matches."""
    array = tensor.numpy()
    whole_bytes = array.nbytes == tensor.nbytes and array.dtype.byteorder in "=|<"
    if whole_bytes and array.flags.c_contiguous and array.size and sys.byteorder == "little":
        return array.reshape(-1).view(np.uint8).data
    return tensor.tobytes()


_PAGEOUT = 21  # Linux's MADV_PAGEOUT, since 5.4; nothing is lost: changed pages are kept
_MAPS = Path("/proc/self/maps")
_INTERVAL = 0.02
"""Seconds between two looks: a disk reads a few dozen MiB in that time."""


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


@contextmanager
def mapped_below(limit: int) -> Iterator[None]:
    """While active, let the system drop the pages of mapped files whenever they exceed a limit.

    A model whose session has ``prepack=False`` reads its weights from the mapped file, so that it
    runs in less memory than it has weights; each run may read them from the disk again.
    On systems other than Linux this does nothing.

    Args:
        limit: Bytes of mapped files that are resident, code included.
    """
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(_INTERVAL):
            if _resident_files() > limit:
                give_back_mapped_files()

    watcher = threading.Thread(target=watch, daemon=True)
    if sys.platform == "linux":
        watcher.start()
    try:
        yield
    finally:
        stop.set()
        if watcher.is_alive():
            watcher.join()


def _resident_files() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[2])  # those of files
    return pages * os.sysconf("SC_PAGE_SIZE")


def _data_ranges() -> list[tuple[int, int]]:
    """Return the large address ranges that map data files, not code."""
    ranges: list[tuple[str, int, int]] = []
    # A library is mapped in several ranges, of which one is executable.
    code = set()
    for line in _MAPS.read_text().splitlines():
        span, permissions, _, _, inode, *path = line.split(maxsplit=5)
        start, end = (int(text, 16) for text in span.split("-"))
        # Anonymous memory, the heap and the stack belong to no file.
        if inode == "0" or not path:
            continue
        ranges.append((path[0], start, end))
        if "x" in permissions:
            code.add(path[0])
    return [
        (start, end) for path, start, end in ranges if path not in code and end - start >= LARGE
    ]
