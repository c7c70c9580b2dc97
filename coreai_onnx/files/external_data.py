"""Weights of files: every place that a tensor may be in is checked here before anything is read.

A file from elsewhere may name any other file as that of its weights, and a tensor may be in an
initializer, an attribute, a subgraph, a function body, a default of a function's attribute, a
sparse tensor or the training information. So the tensors are found by the type of their message,
wherever it is, and not by a list of places.
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
from coreai_onnx.model.contents import graphs, initializers
from coreai_onnx.table import size_text

_STRING_FIELD, _MESSAGE_FIELD = 9, 11
"""Numbers of field types in protobuf's descriptors."""
_VALUE_FIELDS = {onnx.AttributeProto.TENSOR: "t", onnx.AttributeProto.GRAPH: "g"}
"""Fields that protobuf would make up: a tensor without a type, a graph of nothing."""
_NUMBER_DIGITS = 19
"""Digits of the largest 64-bit number."""


class DataFile:
    """A data file, kept open, whose reader notices that another process has written to it.

    A file that is replaced by another one of its name does no harm: the open one is the one that
    the model was loaded with.

    Args:
        path: The file, which was found to be in the folder of its model.
    """

    def __init__(self, path: Path) -> None:
        """Open the file and note its size and time."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self._descriptor)
        self._stamp = self._now()
        size = self._stamp[0]
        self._map = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ) if size else b""

    def view(self) -> memoryview:
        """Return the whole file, mapped.

        Raises:
            LoadError: If the file was changed since it was opened.
        """
        if self._now() != self._stamp:
            raise LoadError(
                f"{self.path}: was changed after the model was loaded\n"
                "  load the model again; its weights are not those of its graph any more"
            )
        return memoryview(self._map)

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns


class FileTensor(ir.LazyTensor):
    """A weight in a data file, read from its mapping; it is never written as a reference.

    Attributes:
        path: The data file.
        offset: Where in it the weight begins, in bytes.
    """

    def __init__(self, tensor: ir.ExternalTensor, files: dict[Path, DataFile]) -> None:
        """Take the place of onnx_ir's tensor, which maps the file once for each tensor.

        Args:
            tensor: The tensor as the model file describes it.
            files: The data files that are open, to which its own is added when it is first read.
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
        """Open the data file, so that its contents are those of now.

        Raises:
            LoadError: If it cannot be opened.
        """
        self._file()

    def tobytes(self) -> bytes:
        """Return the bytes as the file has them."""
        return bytes(self._bytes())

    def _file(self) -> DataFile:
        if self.path not in self._files:
            try:
                self._files[self.path] = DataFile(self.path)
            except (OSError, ValueError) as error:
                raise LoadError(f"{self.path}: cannot be read: {reason_of(error)}") from error
        return self._files[self.path]

    def _bytes(self) -> memoryview:
        part = self._file().view()[self.offset : self.offset + self.nbytes]
        if len(part) != self.nbytes:
            raise LoadError(
                f"{self.path}: has not the bytes {self.offset} to {self.offset + self.nbytes} "
                f"of weight {self.name!r}\n  the data file was cut short"
            )
        return part

    def _read(self) -> ir.TensorProtocol:
        data = self._bytes()
        if self._array is None:
            self._array = self._decoded(data)
        return ir.Tensor(self._array, dtype=self.dtype, shape=self.shape, name=self.name)

    def _decoded(self, data: memoryview) -> np.ndarray:
        if self.dtype.bitwidth < 8:  # packed, so unpacked into memory of its own
            proto = onnx.TensorProto(
                data_type=self.dtype.value, dims=self.shape.numpy(), raw_data=bytes(data)
            )
            return ir.serde.TensorProtoTensor(proto).numpy()
        dtype = np.dtype(self.dtype.numpy()).newbyteorder("<")
        array: np.ndarray = np.frombuffer(data, dtype=dtype).reshape(self.shape.numpy())
        return array


def check_strings_and_tensors(proto: onnx.ModelProto, folder: Path, *, data: bool) -> str:
    """Return what is wrong with the texts and the tensors of a message; empty if nothing is.

    Args:
        proto: The model.
        folder: The folder that data files have to be in.
        data: Whether data files have to be there whole, and tensors of the model file as well.
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
    """Return the field in which an attribute should have its value and has none."""
    name = _VALUE_FIELDS.get(attribute.type, "")
    absent = name and not attribute.ref_attr_name and not attribute.HasField(name)
    return name if absent else ""


def _not_text(value: Any) -> bytes | None:
    """Return what protobuf could not decode: it gives such strings as bytes."""
    texts = (value,) if isinstance(value, str | bytes) else value
    return next((text for text in texts if isinstance(text, bytes)), None)


def _fault(tensor: onnx.TensorProto, folder: Path, *, data: bool) -> str:
    """Return what is wrong with a tensor."""
    if tensor.data_type not in ir.DataType._value2member_map_ or not tensor.data_type:
        return f"has the unknown data type {tensor.data_type}"
    if min(tensor.dims, default=0) < 0:
        return f"has the shape {list(tensor.dims)}"
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _place(tensor, folder) or (_contents(tensor, folder) if data else "")
    return _held(tensor) if data else ""


def _entries(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _place(tensor: onnx.TensorProto, folder: Path) -> str:
    """Return what is wrong with where a weight is said to be."""
    entries = _entries(tensor)
    if len(entries) < len(tensor.external_data):
        return "is said to be in two places"
    if odd := next((key for key in entries if not key.isidentifier()), None):
        return f"is described by {odd!r}, which nothing knows"
    for key in ("offset", "length"):
        text = entries.get(key, "0")
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
    """Return whether a path stays in a folder, as it is written and with links followed."""
    depth = 0
    for part in file.relative_to(folder).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return False
    return Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder))


def _contents(tensor: onnx.TensorProto, folder: Path) -> str:
    """Return what is wrong with the part of a data file that a weight is in."""
    entries = _entries(tensor)
    file, expected = folder / entries["location"], _size(tensor)
    try:
        status = file.stat()
    except FileNotFoundError:
        return f"is in {file}, which is not there\n  a model and its data file travel together"
    except OSError as error:
        return f"is in {file}, which cannot be read: {error.strerror or error}"
    if not stat.S_ISREG(status.st_mode):
        return f"is in {file}, which is not a file"
    if status.st_nlink > 1:
        return f"is in {file}, which has other names (hard links)\n  make it a copy of its own"
    if int(entries.get("length", expected)) != expected:
        return f"takes {expected} bytes, but {entries['length']} are said to be in {file}"
    start, size = int(entries.get("offset", 0)), status.st_size
    if start + expected > size:
        return (
            f"is at bytes {start} to {start + expected} of {file}, which has {size} "
            f"({size_text(size)})\n  the data file was cut short, or is that of another model"
        )
    return ""


def _held(tensor: onnx.TensorProto) -> str:
    """Return what is wrong with a weight that the model file holds itself."""
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
    """Return the bytes that a tensor of this type and shape takes."""
    bits = ir.DataType(tensor.data_type).bitwidth * math.prod(tensor.dims)
    return int(-(-bits // 8))


def bring_in(model: ir.Model, folder: Path, *, data: bool) -> None:
    """Let every weight of a checked model that is in a data file be a `FileTensor`.

    Args:
        model: The model.
        folder: The folder of its file.
        data: Whether to open the data files now, so that a change of them is noticed.

    Raises:
        LoadError: If a data file cannot be opened.
    """
    files: dict[Path, DataFile] = {}

    def read(tensor: ir.ExternalTensor) -> FileTensor:
        tensor.base_dir = folder
        found = FileTensor(tensor, files)
        if data:
            found.open()
        return found

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
    """Return the data files of a model that was read from a file, each once."""
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
    """Yield the attributes of every node, and the defaults of those of functions."""
    for function in model.functions.values():
        yield function.attributes
    for graph in graphs(model):
        for node in graph:
            yield node.attributes
