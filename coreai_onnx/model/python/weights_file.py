"""Writing weights as a safetensors file; tensors that a model shares are written once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import onnx_ir as ir

from coreai_onnx.errors import LoadError
from coreai_onnx.model.files.external_data import FileTensor
from coreai_onnx.model.files.saving import HELD_BYTES, give_back_mapped_files, raw_bytes
from coreai_onnx.model.python.builder.weights import DIGEST, DTYPES, TYPES

_NAMES = {onnx: name for name, onnx in DTYPES.items()}
_ALIGNMENT = 8
"""The header ends at a multiple of it, as safetensors' own files do."""


def write_weights(
    file: BinaryIO, weights: Mapping[str, ir.TensorProtocol], digest: str = ""
) -> None:
    """Write tensors by falling size of their elements, so that all are aligned.

    Types that safetensors lacks (4-bit integers, texts) are stored as bytes; the file's metadata
    has their type and shape, the names of tensors that share their data, and the digest.
    """
    unique, special = _unique(weights)
    # safetensors allows no gaps between tensors, so that only their order can align them.
    bits = {
        name: 0 if tensor.dtype == ir.DataType.STRING else tensor.dtype.bitwidth
        for name, tensor in unique.items()
    }
    unique = dict(sorted(unique.items(), key=lambda item: -bits[item[0]]))
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in unique.items():
        start, end = end, end + size_of(tensor)
        shape = list(tensor.shape.numpy())
        dtype = _NAMES.get(tensor.dtype.name)
        if dtype is None:
            special[name] = {"dtype": tensor.dtype.name, "shape": shape}
            dtype, shape = "U8", [end - start]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    for name, entry in special.items():
        if "same_as" in entry:
            special[name] = {**special.get(entry["same_as"], {}), **entry}
    metadata = {DIGEST: digest} if digest else {}
    if special:
        metadata[TYPES] = json.dumps(special, sort_keys=True)
    if metadata:
        header["__metadata__"] = metadata
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    file.write(len(text).to_bytes(8, "little") + text)
    written = 0
    for tensor in unique.values():
        if isinstance(tensor, AbsentTensor):
            file.seek(tensor.nbytes, os.SEEK_CUR)
            continue
        data = _texts(tensor) if tensor.dtype == ir.DataType.STRING else raw_bytes(tensor)
        file.write(data)
        written += len(data)
        if written >= HELD_BYTES:
            written = 0
            give_back_mapped_files()
    # Skipping the data of the last tensors does not make the file longer.
    file.truncate(file.tell())


def digest_of(weights: Mapping[str, ir.TensorProtocol]) -> str:
    """Return a hash of the names, types, shapes and bytes of weights."""
    whole = hashlib.blake2b(digest_size=8)
    for name, tensor in weights.items():
        whole.update(f"{name} {tensor.dtype.name} {tensor.shape.numpy()}".encode())
        is_text = tensor.dtype == ir.DataType.STRING
        whole.update(_texts(tensor) if is_text else raw_bytes(tensor))
    return whole.hexdigest()


class AbsentTensor(ir.LazyTensor):
    """A weight whose data the text form of a model does not have; a file has a hole there."""

    def __init__(self, name: str, dtype: ir.DataType, shape: Sequence[int]) -> None:
        def absent() -> ir.TensorProtocol:
            raise LoadError(f"weight {name!r} has no data: the text form of a model has none")

        super().__init__(absent, dtype, ir.Shape(shape), name=name)


def _unique(
    weights: Mapping[str, ir.TensorProtocol],
) -> tuple[dict[str, ir.TensorProtocol], dict[str, dict[str, Any]]]:
    """Return the tensors with data of their own, and of the others whose data they share."""
    names: dict[object, str] = {}
    unique, special = {}, {}
    for name, tensor in weights.items():
        first = names.setdefault(_identity(tensor), name)
        if first == name:
            unique[name] = tensor
        else:
            special[name] = {"same_as": first}
    return unique, special


def _identity(tensor: ir.TensorProtocol) -> object:
    """Return what is equal for tensors that share their data."""
    if isinstance(tensor, ir.ExternalTensor) and tensor.length:
        return tensor.path, tensor.offset, tensor.length, tensor.dtype, tuple(tensor.shape)
    if isinstance(tensor, FileTensor):
        return tensor.path, tensor.offset, tensor.nbytes, tensor.dtype, tuple(tensor.shape)
    return id(tensor)


def size_of(tensor: ir.TensorProtocol) -> int:
    """Return the number of bytes that a tensor takes in the file."""
    return len(_texts(tensor)) if tensor.dtype == ir.DataType.STRING else tensor.nbytes


def _texts(tensor: ir.TensorProtocol) -> bytes:
    """Return the texts of a string tensor as JSON; they may hold any bytes."""
    data = tensor.string_data()  # type: ignore[attr-defined]
    return json.dumps([item.hex() for item in data]).encode()
