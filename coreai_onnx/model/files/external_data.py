"""External data of model files: every tensor is checked here before any weight is read.

An untrusted file may name any other file as the location of its weights. A tensor may be in an
initializer, an attribute, a subgraph, a function body, a default of a function's attribute, a
sparse tensor or the training information. Tensors are therefore found by their message type, not
by a list of fields.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
import weakref
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from coreai_onnx.errors import LoadError, reason_of
from coreai_onnx.messages import size_text
from coreai_onnx.model.checks.graph_checks import exceeds_memory
from coreai_onnx.model.inventory import graphs, initializers

_STRING_FIELD, _MESSAGE_FIELD = 9, 11
"""Numbers of field types in protobuf's descriptors."""
_VALUE_FIELDS = {onnx.AttributeProto.TENSOR: "t", onnx.AttributeProto.GRAPH: "g"}
"""Fields that protobuf would default if absent: a tensor without a type, an empty graph."""
_DTYPES = frozenset(ir.DataType)
_NUMBER_DIGITS = 19
"""Number of digits of the largest 64-bit integer."""


class DataFile:
    """An open data file that detects whether another process has written to it.

    Replacing the file by another one of the same name is harmless: the file that the model was
    loaded with stays open.

    Args:
        path: The file; the caller has checked that it is in the folder of its model.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self._descriptor)
        self._stamp = self._now()
        size = self._stamp[0]
        # mmap refuses an empty file.
        self._map = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ) if size else b""

    def view(self) -> memoryview:
        """Return a memory map of the whole file.

        Raises:
            LoadError: If the file has changed since it was opened.
        """
        if self._now() != self._stamp:
            raise LoadError(
                f"{self.path}: was changed after the model was loaded\n"
                "  load the model again: its graph needs the former weights"
            )
        return memoryview(self._map)

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns


class FileTensor(ir.LazyTensor):
    """A weight in a memory-mapped data file; it is never saved as a reference to that file.

    Attributes:
        path: The data file.
        offset: Offset of the weight in the file, in bytes.
    """

    def __init__(self, tensor: ir.ExternalTensor, files: dict[Path, DataFile]) -> None:
        """Replace onnx_ir's tensor, which maps the file once per tensor.

        Args:
            tensor: The tensor as the model file describes it.
            files: The open data files; the tensor's own file is added when it is first read.
        """
        self.path = Path(tensor.path)
        self._files = files
        self.offset = tensor.offset or 0
        self._array: np.ndarray | None = None
        super().__init__(
            self._read,
            tensor.dtype,
            tensor.shape,
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
        )

    def open(self) -> None:
        """Open the data file, so that later changes of it are detected.

        Raises:
            LoadError: If it cannot be opened.
        """
        self._file()

    def tobytes(self) -> bytes:
        """Return the bytes as the file stores them."""
        return bytes(self._bytes())

    def _file(self) -> DataFile:
        if self.path not in self._files:
            if self.path.exists() and not self.path.is_file():  # a read of a pipe may never end
                raise LoadError(f"{self.path}: is not a regular file")
            try:
                self._files[self.path] = DataFile(self.path)
            except (OSError, ValueError) as error:
                raise LoadError(f"{self.path}: cannot be read: {reason_of(error)}") from error
        return self._files[self.path]

    def _bytes(self) -> memoryview:
        part = self._file().view()[self.offset : self.offset + self.nbytes]
        if len(part) != self.nbytes:
            raise LoadError(
                f"{self.path}: lacks the bytes {self.offset} to {self.offset + self.nbytes} "
                f"of weight {self.name!r}\n  the data file is truncated"
            )
        return part

    def _read(self) -> ir.TensorProtocol:
        data = self._bytes()
        if self._array is None:
            self._array = self._decoded(data)
        return ir.Tensor(self._array, dtype=self.dtype, shape=self.shape, name=self.name)

    def _decoded(self, data: memoryview) -> np.ndarray:
        if self.dtype.bitwidth < 8:  # packed elements are unpacked into new memory
            proto = onnx.TensorProto(
                data_type=self.dtype.value, dims=self.shape.numpy(), raw_data=bytes(data)
            )
            return ir.serde.TensorProtoTensor(proto).numpy()
        # ONNX stores raw data in little-endian order on every machine.
        dtype = np.dtype(self.dtype.numpy()).newbyteorder("<")
        array: np.ndarray = np.frombuffer(data, dtype=dtype).reshape(self.shape.numpy())
        return array


def check_strings_and_tensors(proto: onnx.ModelProto, folder: Path, *, data: bool) -> str:
    """Return what is wrong with the strings and tensors of a message; empty if they are valid.

    Args:
        proto: The model.
        folder: The folder that must contain the data files.
        data: Whether the data files, and the tensors in the model file, must be complete.
    """
    waiting: list[Any] = [proto]
    while waiting:
        message = waiting.pop()
        if isinstance(message, onnx.TensorProto) and (wrong := _fault(message, folder, data=data)):
            name = f"weight {message.name!r}" if message.name else "a tensor without a name"
            return f"{name} {wrong}"
        if isinstance(message, onnx.AttributeProto) and (field_name := _absent(message)):
            return f"attribute {message.name!r} has no {field_name}"
        for field, value in message.ListFields():
            if field.type == _MESSAGE_FIELD:
                waiting.extend((value,) if hasattr(value, "ListFields") else value)
            elif field.type == _STRING_FIELD and (spoiled := _not_text(value)):
                return f"a {message.DESCRIPTOR.name} has the {field.name} {spoiled!r}, not UTF-8"
    return ""


def _absent(attribute: onnx.AttributeProto) -> str:
    """Return the field that should hold an attribute's value but is absent."""
    name = _VALUE_FIELDS.get(attribute.type, "")
    absent = name and not attribute.ref_attr_name and not attribute.HasField(name)
    return name if absent else ""


def _not_text(value: Any) -> bytes | None:
    """Return a string that protobuf could not decode: protobuf returns such strings as bytes."""
    texts = (value,) if isinstance(value, str | bytes) else value
    return next((text for text in texts if isinstance(text, bytes)), None)


def _fault(tensor: onnx.TensorProto, folder: Path, *, data: bool) -> str:
    if tensor.data_type not in _DTYPES or not tensor.data_type:
        return f"has the unknown data type {tensor.data_type}"
    if min(tensor.dims, default=0) < 0:
        return f"has the shape {list(tensor.dims)}"
    if exceeds_memory(tensor.dims, ir.DataType(tensor.data_type)):
        return f"has the shape {list(tensor.dims)}, which no memory can hold"
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _place(tensor, folder) or (_range_fault(tensor, folder) if data else "")
    return _held(tensor) if data else ""


def _entries(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _place(tensor: onnx.TensorProto, folder: Path) -> str:
    entries = _entries(tensor)
    # Of two entries with one key, some readers take the first and others the last.
    if len(entries) < len(tensor.external_data):
        return "is said to be in two places"
    if odd := next((key for key in entries if not key.isidentifier()), None):
        return f"is described by {odd!r}, which nothing knows"
    for key in ("offset", "length"):
        text = entries.get(key, "0")
        # Python's int accepts signs, spaces and underscores as well, which other readers refuse.
        if not (text.isascii() and text.isdecimal() and len(text) <= _NUMBER_DIGITS):
            return f"has the {key} {text}"
    location = entries.get("location", "")
    if not location:
        return "is in a data file without a name"
    if "\0" in location:
        return f"is in a data file of the name {location!r}, which no file can have"
    if tensor.data_type == onnx.TensorProto.STRING:
        return f"is in {location}, but strings cannot be in a data file"
    if Path(location).is_absolute() or not _inside(folder / location, folder):
        return (
            f"is said to be in {location}, outside of the model's folder, and is not read from "
            f"there\n  if that is meant, copy that file to {folder} and save the model again"
        )
    return ""


def _inside(file: Path, folder: Path) -> bool:
    """Return whether a path stays inside a folder, both as written and with links resolved."""
    # Some libraries shorten `link/..` as text and others follow the link: both must end inside.
    depth = 0
    for part in file.relative_to(folder).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return False
    return Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder))


def _range_fault(tensor: onnx.TensorProto, folder: Path) -> str:
    entries = _entries(tensor)
    file, expected = folder / entries["location"], _size(tensor)
    try:
        status = file.stat()
    except FileNotFoundError:
        return f"is in {file}, which does not exist\n  keep a model and its data file in one folder"
    except OSError as error:
        return f"is in {file}, which cannot be read: {error.strerror or error}"
    if not stat.S_ISREG(status.st_mode):
        return f"is in {file}, which is not a file"
    # A second name of a file outside of the folder is a path inside, also with links resolved.
    if status.st_nlink > 1:
        return f"is in {file}, which has other names (hard links)\n  replace it by a copy"
    if int(entries.get("length", expected)) != expected:
        return f"takes {expected} bytes, but {entries['length']} of {file} are assigned to it"
    start, size = int(entries.get("offset", 0)), status.st_size
    if start + expected > size:
        return (
            f"is at bytes {start} to {start + expected} of {file}, which has {size} "
            f"({size_text(size)})\n  the data file is truncated, or belongs to another model"
        )
    return ""


def _held(tensor: onnx.TensorProto) -> str:
    if tensor.data_type == onnx.TensorProto.STRING:
        size, expected = len(tensor.string_data), math.prod(tensor.dims)
        return "" if size == expected else f"has {size} strings, its shape takes {expected}"
    if tensor.HasField("raw_data"):
        size, expected = len(tensor.raw_data), _size(tensor)
        return "" if size == expected else f"has {size} bytes, its shape takes {expected}"
    try:
        size = ir.serde.TensorProtoTensor(tensor).numpy().size
    except (TypeError, ValueError, OverflowError) as error:
        return f"is broken: {reason_of(error)}"
    expected = math.prod(tensor.dims)
    return "" if size == expected else f"has {size} elements, its shape takes {expected}"


def _size(tensor: onnx.TensorProto) -> int:
    bits = ir.DataType(tensor.data_type).bitwidth * math.prod(tensor.dims)
    return int(-(-bits // 8))


def bring_in(model: ir.Model, folder: Path, *, data: bool) -> None:
    """Replace every weight of a checked model that is in a data file by a `FileTensor`.

    Args:
        model: The model.
        folder: The folder of its file.
        data: Whether to open the data files now, so that later changes are detected.

    Raises:
        LoadError: If a data file cannot be opened.
    """
    files: dict[Path, DataFile] = {}

    def read(tensor: ir.ExternalTensor) -> FileTensor:
        tensor.base_dir = folder
        weight = FileTensor(tensor, files)
        if data:
            weight.open()
        return weight

    for graph in graphs(model):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = read(value.const_value)
    for attributes in _attributes(model):
        for name, attribute in list(attributes.items()):
            if attribute.is_ref():
                continue
            value = attribute.value
            if isinstance(value, ir.ExternalTensor):
                attributes[name] = ir.AttrTensor(name, read(value))
            elif attribute.type == ir.AttributeType.TENSORS and value is not None:
                one_by_one = [read(t) if isinstance(t, ir.ExternalTensor) else t for t in value]
                attributes[name] = ir.AttrTensors(name, one_by_one)


def data_files(model: ir.Model) -> list[Path]:
    """Return the data files of a model that was read from a file, without duplicates."""
    tensors: list[ir.TensorProtocol | None] = [value.const_value for value in initializers(model)]
    for attributes in _attributes(model):
        for attribute in attributes.values():
            if not attribute.is_ref() and attribute.value is not None:
                if attribute.type == ir.AttributeType.TENSOR:
                    tensors.append(attribute.as_tensor())
                elif attribute.type == ir.AttributeType.TENSORS:
                    tensors += attribute.as_tensors()
    return list(dict.fromkeys(t.path for t in tensors if isinstance(t, FileTensor)))


def _attributes(model: ir.Model) -> Iterator[MutableMapping[str, ir.Attr]]:
    """Yield the attributes of every node, and the attribute defaults of functions."""
    for function in model.functions.values():
        yield function.attributes
    for graph in graphs(model):
        for node in graph:
            yield node.attributes
