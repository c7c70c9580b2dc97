"""Constants as Python literals, exact in every bit, and types as onnxscript writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import onnx_types

from coreai_onnx.model.python.builder.arguments import Fields, Fixed
from coreai_onnx.model.python.builder.tensors import constant, content_key, tensor
from coreai_onnx.model.python.layout import Bracket, Expression, Named, call, keyed, listed, quoted

LIMIT = 16
"""Elements of the largest constant that is written in place; four lines of a shape or mask."""
_DIGITS = 17
"""Decimal digits that identify any double."""


def type_name(dtype: ir.DataType) -> str | None:
    """Return onnxscript's name of an element type, ``FLOAT``; None if it has none."""
    return dtype.name if hasattr(onnx_types, dtype.name) else None


def literal(value: ir.TensorProtocol) -> Expression | None:
    """Return a constant as Python: ``[0, -1]``, ``1e-6``, ``tensor(0.5, FLOAT16)``.

    Returns:
        None if it is too large, or has bits that no literal has (a NaN with a payload).
    """
    if math.prod(value.shape.numpy()) > LIMIT or type_name(value.dtype) is None:
        return None
    if value.dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        return None
    plain, items = _values(value)
    if plain is None:
        return None
    key = content_key(value)
    # A literal alone is shorter, where it means the same type and the same bits.
    if items and value.dtype in _PLAIN and content_key(constant(plain)) == key:
        return _nested(plain, value.dtype)
    shape = list(value.shape.numpy())
    again = tensor(plain, value.dtype, shape)
    if content_key(again) != key:
        return None
    # An empty list does not show how many axes it has.
    named = [] if items else [Named("shape=", listed([str(dim) for dim in shape]))]
    return call("tensor", [_nested(plain, value.dtype), value.dtype.name, *named])


_PLAIN = (ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.BOOL, ir.DataType.STRING)


def _values(value: ir.TensorProtocol) -> tuple[Any, int]:
    """Return the elements as nested lists, and their number."""
    if isinstance(value, ir.StringTensor) or value.dtype == ir.DataType.STRING:
        try:
            texts = [item.decode() for item in value.string_data()]  # type: ignore[attr-defined]
        except UnicodeDecodeError:
            return None, 0
        array = np.array(texts, dtype=object).reshape(value.shape.numpy())
        return array.tolist(), array.size
    array = value.numpy()
    if value.dtype.is_integer() or value.dtype == ir.DataType.BOOL:
        wide = array if array.dtype.kind in "iub" else array.astype(np.int64)
        return wide.tolist(), array.size
    texts = [float(shortest(item)) for item in array.reshape(-1)]
    return np.array(texts, dtype=np.float64).reshape(array.shape).tolist(), array.size


def _nested(value: Any, dtype: ir.DataType) -> Expression:
    if isinstance(value, list):
        return listed([_nested(item, dtype) for item in value])
    if isinstance(value, float):
        return float_text(value)
    return quoted(value) if isinstance(value, str) else repr(value)


def shortest(item: Any) -> str:
    """Return the fewest decimal digits that are read back as the same number of its dtype."""
    number = float(item)
    if not math.isfinite(number):
        return repr(number)
    kind = np.asarray(item).dtype
    with np.errstate(over="ignore"):
        for digits in range(1, _DIGITS):
            text = f"{number:.{digits}g}"
            if np.asarray(float(text)).astype(kind) == item:
                return text
    return repr(number)


def float_text(number: float) -> str:
    """Return a double as Python: ``1e-6``, ``0.5``, ``float("inf")``."""
    if not math.isfinite(number):
        return f'float("{number}")'
    mantissa, _, exponent = repr(number).partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def float32_text(number: float) -> str:
    """Return an attribute's number, which ONNX keeps in single precision."""
    single = np.float32(number)
    if float(single) != number:
        return float_text(number)
    return float_text(float(shortest(single)))


# ---------------------------------------------------------------------- types
def annotation(type_: ir.TypeProtocol | None, shape: ir.Shape | None) -> Expression | None:
    """Return a type as onnxscript writes it, ``FLOAT["batch", 384]``; None if it is unknown."""
    if isinstance(type_, ir.SequenceType | ir.OptionalType):
        inner = annotation(type_.elem_type, shape)
        kind = f"ir.{type(type_).__name__}"
        return None if inner is None else call("Container", [kind, inner])
    if not isinstance(type_, ir.TensorType) or type_name(type_.dtype) is None:
        return None
    name = type_.dtype.name
    if shape is None:
        return f"{name}[...]"
    return Bracket(name, tuple(_dim(dim) for dim in shape), "[]") if len(shape) else name


def _dim(dim: int | ir.SymbolicDim) -> str:
    if isinstance(dim, int):
        return str(dim)
    return "None" if dim.value is None else quoted(str(dim.value))


# ---------------------------------------------------------------------- Python values
def metadata_text(text: str) -> Expression:
    """Return an entry of the metadata: JSON as Python, other texts as they are."""
    try:
        value = json.loads(text)
        # Other spacing or another order in the JSON would be lost.
        is_same = not isinstance(value, str) and json.dumps(value) == text
    except (ValueError, RecursionError):
        is_same = False
    return _python(value) if is_same else quoted(text)


def _python(value: object) -> Expression:
    if isinstance(value, dict):
        return keyed((key, _python(item)) for key, item in value.items())
    if isinstance(value, list):
        return listed([_python(item) for item in value])
    return quoted(value) if isinstance(value, str) else repr(value)


def arguments_text(item: Any) -> Expression:
    """Return what an argument holds as Python."""
    if isinstance(item, Fixed):
        value = item.value
        is_number = isinstance(value, float) and not math.isfinite(value)
        text = f'float("{value}")' if is_number else repr(value)
        return call("Fixed", [quoted(value) if isinstance(value, str) else text])
    if isinstance(item, Fields):
        return call("Fields", [Named(f"{k}=", arguments_text(v)) for k, v in item.items.items()])
    if isinstance(item, Mapping):
        keys = [quoted(key) if isinstance(key, str) else repr(key) for key in item]
        pairs = zip(keys, item.values(), strict=True)
        return Bracket("", tuple(Named(f"{k}: ", arguments_text(v)) for k, v in pairs), "{}")
    return quoted(item) if isinstance(item, str) else listed([arguments_text(one) for one in item])
