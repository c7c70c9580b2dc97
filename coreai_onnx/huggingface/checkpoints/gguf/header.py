"""Checks the header of a GGUF file before a library reads it.

The reader of ``gguf`` trusts the counts and offsets of a file: an array that claims 2⁶⁰ elements
fills the memory. Here every size is compared with that of the file first. A file may be sparse, so
that its size is no limit either: counts and texts are limited to more than any model has.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFValueType,
    ReaderField,
    ReaderTensor,
)
from gguf.quants import quant_shape_to_byte_shape

from coreai_onnx.errors import ModelSourceError

_MAGIC, _VERSIONS, _ALIGNMENT = b"GGUF", (2, 3), 32
_FORMATS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
"""The types of single values, as formats of `struct`."""
_DTYPES = {
    GGMLQuantizationType.F16: np.float16,
    GGMLQuantizationType.F32: np.float32,
    GGMLQuantizationType.F64: np.float64,
}
"""The types that NumPy has."""
# The most that llama.cpp reads.
_MOST_DIMS, _MOST_BYTES_OF_NAME = 4, 1 << 16
_MOST_ENTRIES = 1 << 20
# The reader of gguf makes some hundred bytes of objects for each. Gemma 3 has 1.3 million.
_MOST_ELEMENTS = 1 << 22
_MOST_BYTES_OF_TEXT = 1 << 24
_LONG = 4096  # elements; one for each layer is short


class TensorEntry(NamedTuple):
    """A tensor of a file: dims as torch has them, the type, and its bytes in the file."""

    dims: tuple[int, ...]
    type: GGMLQuantizationType
    start: int
    size: int


class Header(NamedTuple):
    """The header of a file.

    Attributes:
        values: The metadata by names, with the lengths of arrays.
        tensors: The tensors by names.
        without_vocabulary: A file with the same metadata, but for long arrays, and one number for
            each tensor: libraries take minutes to read tokens that are not asked for.
    """

    values: dict[str, Any]
    tensors: dict[str, TensorEntry]
    without_vocabulary: bytes


def read_header(path: Path) -> Header:
    """Read the header of a GGUF file, and check that all it refers to is in the file.

    Raises:
        ModelSourceError: If it is not a GGUF file, a size or an offset points outside of it, a type
            is unknown, or a name occurs twice.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Cursor(data).header()
    except ModelSourceError as error:
        raise ModelSourceError(f"{path}: {error.args[0]}") from error
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise ModelSourceError(f"{path}: cannot be read: {error}") from error


class _Cursor:
    """A position in a file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.elements = data, 0, 0

    def header(self) -> Header:
        if self.data[:4] != _MAGIC:
            raise ModelSourceError("is not a GGUF file")
        self.at = 4
        version = self.number("I")
        if version not in _VERSIONS:
            other = " or its bytes are in the order of another machine"
            raise ModelSourceError(f"GGUF version {version} is not supported{other}")
        tensor_count = self.count("tensors", _MOST_ENTRIES)
        value_count = self.count("values in the metadata", _MOST_ENTRIES)
        values: dict[str, Any] = {}
        short: list[bytes] = []
        # A count may lie: the end of the file ends the loop.
        for _ in range(value_count):
            before, name = self.at, self.text(_MOST_BYTES_OF_NAME)
            if name in values:
                raise ModelSourceError(f"the metadata has {name!r:.80} twice")
            values[name], is_long = self.value(self.kind())
            if not is_long:
                short.append(self.data[before : self.at])
        alignment = values.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ModelSourceError(f"general.alignment must be a power of 2, got {alignment!r:.80}")
        infos: dict[str, TensorEntry] = {}
        for _ in range(tensor_count):
            name = self.text(_MOST_BYTES_OF_NAME)
            if name in infos:
                raise ModelSourceError(f"the tensor {name!r:.80} occurs twice")
            infos[name] = self.tensor(name, alignment)
        begin = -(-self.at // alignment) * alignment
        for name, info in infos.items():
            if begin + info.start + info.size > len(self.data):
                raise ModelSourceError(
                    f"the tensor {name!r:.80} ends at byte {begin + info.start + info.size:,} of "
                    f"{len(self.data):,}: the download is incomplete, or the file is damaged"
                )
        _check_overlaps(infos)
        tensors = {name: info._replace(start=begin + info.start) for name, info in infos.items()}
        return Header(values, tensors, _small_file(version, short, list(tensors), alignment))

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        self.skip(size)
        return self.data[self.at - size : self.at]

    def skip(self, size: int) -> None:
        if size > len(self.data) - self.at:
            raise ModelSourceError(
                f"the header ends after {len(self.data):,} bytes: the download is incomplete, or "
                "the file is damaged"
            )
        self.at += size

    def number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(form)))[0]

    def count(self, what: str, most: int) -> int:
        """Return a number of entries."""
        count: int = self.number("Q")
        if count > most:
            raise ModelSourceError(f"the header has {count:,} {what}, at most {most:,} are read")
        return count

    def text(self, most: int = _MOST_BYTES_OF_TEXT) -> str:
        text = self.take(self.count("bytes in a text", most))
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise ModelSourceError(f"the text {text[:40]!r} is not UTF-8") from error

    def kind(self) -> GGUFValueType:
        kind = self.number("I")
        try:
            return GGUFValueType(kind)
        except ValueError as error:
            raise ModelSourceError(
                f"the metadata has values of an unknown type ({kind})"
            ) from error

    def value(self, kind: GGUFValueType) -> tuple[Any, bool]:
        """Return a value of the metadata, or the length of an array, and whether that is long."""
        if kind == GGUFValueType.STRING:
            return self.text(), False
        if kind in _FORMATS:
            return self.number(_FORMATS[kind]), False
        item, count = self.kind(), self.count("elements in an array", _MOST_ELEMENTS)
        self.elements += count
        if self.elements > _MOST_ELEMENTS:
            raise ModelSourceError(
                f"the header has {self.elements:,} elements in arrays, at most {_MOST_ELEMENTS:,} "
                "are read"
            )
        if item in _FORMATS:
            self.skip(count * struct.calcsize(_FORMATS[item]))
        elif item == GGUFValueType.STRING:
            for _ in range(count):
                self.skip(self.number("Q"))
        else:
            raise ModelSourceError("the metadata has arrays of arrays")
        return count, count > _LONG

    def tensor(self, name: str, alignment: int) -> TensorEntry:
        rank = self.number("I")
        if not 1 <= rank <= _MOST_DIMS:
            raise ModelSourceError(f"the tensor {name!r:.80} has {rank} dims")
        dims = tuple(self.number("Q") for _ in range(rank))[::-1]
        if 0 in dims:
            raise ModelSourceError(f"the tensor {name!r:.80} is empty: {list(dims)}")
        number, start = self.number("I"), self.number("Q")
        try:
            kind = GGMLQuantizationType(number)
        except ValueError as error:
            raise ModelSourceError(
                f"the tensor {name!r:.80} has the type {number}, which this version of gguf does "
                "not know"
            ) from error
        block, size = GGML_QUANT_SIZES[kind]
        if dims[-1] % block:
            raise ModelSourceError(
                f"the tensor {name!r:.80} has {dims[-1]} columns in blocks of {block}"
            )
        if start % alignment:
            raise ModelSourceError(f"the tensor {name!r:.80} begins at byte {start}")
        count = 1
        for dim in dims:  # numbers of Python do not overflow
            count *= dim
        return TensorEntry(dims, kind, start, count // block * size)


def _check_overlaps(infos: Mapping[str, TensorEntry]) -> None:
    end, before = 0, ""
    for name, info in sorted(infos.items(), key=lambda item: item[1].start):
        if info.start < end:
            raise ModelSourceError(f"the tensors {before!r:.80} and {name!r:.80} overlap")
        end, before = info.start + info.size, name


def _small_file(version: int, values: list[bytes], names: list[str], alignment: int) -> bytes:
    """Return a file with values of the metadata, and a number for each tensor."""
    parts = [_MAGIC, struct.pack("<IQQ", version, len(names), len(values)), *values]
    for i, name in enumerate(names):
        entry = struct.pack("<IQIQ", 1, 1, GGMLQuantizationType.F32, i * alignment)
        parts += [struct.pack("<Q", len(name.encode())), name.encode(), entry]
    content = b"".join(parts)
    # An alignment may be as large as a number in the header.
    size = -len(content) % alignment + len(names) * max(alignment, 4)
    return content + bytes(min(size, _MOST_BYTES_OF_TEXT))


def read_tensors(path: Path, header: Header) -> Iterator[ReaderTensor]:
    """Yield the tensors of a file as the reader of ``gguf`` does, mapped from the file."""
    data = np.memmap(path, mode="r")
    for name, info in header.tensors.items():
        values = data[info.start : info.start + info.size]
        if info.type in _DTYPES:
            values = values.view(_DTYPES[info.type]).reshape(info.dims)
        else:
            values = values.reshape(quant_shape_to_byte_shape(info.dims, info.type))
        shape, count = np.array(info.dims[::-1], np.uint64), math.prod(info.dims)
        field = ReaderField(info.start, name)
        parts = (count, info.size, info.start, values, field)
        yield ReaderTensor(name, info.type, shape, *parts)  # type: ignore[arg-type] # as gguf does
