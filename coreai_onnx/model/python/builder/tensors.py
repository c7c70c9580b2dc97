"""Constants and types of a model file: Python literals, ``tensor(...)``, ``FLOAT["batch", 4]``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnxscript import ir
from onnxscript.onnx_types import TensorType

_LITERALS = {
    "b": ir.DataType.BOOL,
    "i": ir.DataType.INT64,
    "f": ir.DataType.FLOAT,
    "U": ir.DataType.STRING,
}
"""Kind of numpy array that a Python literal makes, to the type of its tensor."""


def tensor(
    values: Any,
    dtype: type[TensorType] | ir.DataType,
    shape: Sequence[int] | None = None,
) -> ir.TensorProtocol:
    """Return a constant of a given type, ``tensor([0.5, 1.0], FLOAT16)``.

    Args:
        values: A number, a text, or nested lists of them.
        dtype: An onnxscript type, such as ``FLOAT16``.
        shape: The shape if ``values`` is a flat list; needed where a dim is 0.
    """
    kind = dtype if isinstance(dtype, ir.DataType) else dtype.dtype
    if kind == ir.DataType.STRING:
        # numpy's own type of texts drops NUL characters at their end.
        texts = np.array(values, dtype=object)
        size = texts.shape if shape is None else tuple(shape)
        data = [
            item.encode() if isinstance(item, str) else item
            for item in texts.reshape(-1)
        ]
        return ir.StringTensor(data, shape=ir.Shape(size))
    array = np.array(values, dtype=kind.numpy())
    return ir.Tensor(array if shape is None else array.reshape(shape), dtype=kind)


def constant(value: Any) -> ir.TensorProtocol:
    """Return the tensor of a literal: 1 is INT64, 1.0 FLOAT, True BOOL, "a" STRING.

    Raises:
        TypeError: If it is none of these.
    """
    if isinstance(value, ir.TensorProtocol):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return ir.Tensor(np.asarray(value))
    kind = _LITERALS.get(np.array(value).dtype.kind) if _is_literal(value) else None
    if kind is None:
        raise TypeError(f"{value!r:.80} must be a value of the graph or a constant")
    return tensor(value, kind)


def _is_literal(value: Any) -> bool:
    if isinstance(value, list | tuple):
        # An empty list shows no type.
        return bool(value) and all(_is_literal(item) for item in value)
    return isinstance(value, bool | int | float | str)


def in_memory(value: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor of its own for an attribute, where ONNX allows no reference to a file."""
    if isinstance(value, ir.ExternalTensor):
        return ir.Tensor(value.numpy().copy(), dtype=value.dtype)
    return value


def content_key(value: ir.TensorProtocol) -> str:
    """Return a text that is equal for equal constants: type, shape and digest of the bytes."""
    if isinstance(value, ir.StringTensor):
        data = b"\0".join(value.string_data())
    else:
        data = value.tobytes()
    digest = hashlib.blake2b(data, digest_size=8).hexdigest()
    return f"{value.dtype.name}{list(value.shape.numpy())} {digest}"


class Container:
    """A sequence or an optional of another type: ``Container(ir.SequenceType, FLOAT["n"])``."""

    def __init__(self, kind: Any, element: Any) -> None:
        """Wrap the type of the elements."""
        self.kind = kind
        self.element = element


def type_and_shape(annotation: Any) -> tuple[ir.TypeProtocol | None, ir.Shape | None]:
    """Return the ONNX type of an annotation, ``FLOAT["batch", 384]``."""
    if isinstance(annotation, Container):
        inner, shape = type_and_shape(annotation.element)
        return annotation.kind(inner), shape
    if isinstance(annotation, type) and issubclass(annotation, TensorType):
        parts = annotation.to_ir_type_and_shape()
        return parts.type, parts.shape
    return None, None
