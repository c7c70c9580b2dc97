"""Attributes of nodes: Python values, references to a function's own attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import onnx
from onnxscript import ir

from .errors import failure
from .schemas import schema_of
from .tensors import in_memory, type_and_shape
from .weights import StoredWeight

_KINDS = ir.AttributeType
_SINGLE = {
    _KINDS.INTS: _KINDS.INT,
    _KINDS.FLOATS: _KINDS.FLOAT,
    _KINDS.STRINGS: _KINDS.STRING,
}
_PYTHON = {_KINDS.INT: int, _KINDS.FLOAT: float, _KINDS.STRING: str}
_CONSTANT = {_KINDS.INT: "value_int", _KINDS.FLOAT: "value_float", _KINDS.STRING: "value_string",
             _KINDS.INTS: "value_ints", _KINDS.FLOATS: "value_floats",
             _KINDS.STRINGS: "value_strings", _KINDS.TENSOR: "value"}  # fmt: skip


@dataclass(frozen=True)
class AttributeReference:
    """An attribute of the function that is being traced; its value is known where it is called."""

    name: str
    kind: ir.AttributeType

    @property
    def advice(self) -> str:
        """How to read the attribute as a value."""
        return f"op.Constant({_CONSTANT.get(self.kind, 'value')}={self.name})"

    def attribute(
        self, name: str, kind: ir.AttributeType | None, frame: FrameType
    ) -> ir.Attr:
        """Return the attribute ``name`` of a node that has this attribute's value."""
        kinds = (kind, self.kind)
        if _KINDS.UNDEFINED not in kinds and kind is not None and kind != self.kind:
            raise failure(
                frame, f"{name} is {kind.name}, the attribute {self.name} {self.kind}"
            )
        return ir.RefAttr(name, self.name, kind or self.kind)


@dataclass(frozen=True)
class typed:  # noqa: N801
    """A value with the type of its attribute, where the operator's schema does not say it.

    ``typed("INTS", [])`` is an empty list of integers, ``typed("FLOAT", eps)`` a reference.
    """

    kind: str
    value: Any


def declared_types(
    domain: str, op_type: str, opsets: Mapping[str, int]
) -> dict[str, ir.AttributeType]:
    """Return the types of an operator's attributes, or {} if it has no schema."""
    schema = schema_of(domain, op_type, opsets)
    if schema is None:
        return {}
    kinds: dict[str, Any] = dict(schema.attributes)
    return {name: _KINDS(item.type.value) for name, item in kinds.items()}


def attribute(
    name: str, value: Any, kind: ir.AttributeType | None, frame: FrameType | CodeType
) -> ir.Attr:
    """Return an attribute with a Python value.

    Raises:
        BuildError: If the value has another type than the operator takes.
    """
    if isinstance(value, ir.Attr):  # the default of a function's attribute
        return value
    if isinstance(value, typed):
        kind = ir.AttributeType.__members__[value.kind]
        value = value.value
        if isinstance(value, AttributeReference):
            return ir.RefAttr(name, value.name, kind)
    if isinstance(value, StoredWeight):
        value = in_memory(value.load())
    if kind is None or kind == _KINDS.UNDEFINED:
        kind = _kind_of(value)
    try:
        return ir.Attr(name, kind, _converted(value, kind))
    except (TypeError, KeyError) as error:
        expected = "another type" if kind is None else kind.name
        raise failure(frame, f"{name}={value!r:.80}: {expected} is expected") from error


def _kind_of(value: Any) -> Any:
    if isinstance(value, ir.TensorProtocol):
        return _KINDS.TENSOR
    items = value if isinstance(value, list | tuple) else [value]
    single = next(
        (kind for kind in _SINGLE.values() if _fits(items, _PYTHON[kind])), None
    )
    if items is not value:
        return single
    return next((kind for kind, one in _SINGLE.items() if one == single), None)


def _fits(items: Any, python: type) -> bool:
    return bool(items) and all(isinstance(item, python) for item in items)


def _converted(value: Any, kind: Any) -> Any:
    if kind in _SINGLE:
        if isinstance(value, str) or not isinstance(value, list | tuple):
            raise TypeError
        return [_converted(item, _SINGLE[kind]) for item in value]
    if kind == _KINDS.FLOAT and isinstance(value, int | float):
        return float(value)
    if kind == _KINDS.INT and isinstance(value, int):
        return int(value)
    if kind == _KINDS.STRING and isinstance(value, str):
        return value
    if kind == _KINDS.TENSOR and isinstance(value, ir.TensorProtocol):
        return value
    if kind == _KINDS.TYPE_PROTO:
        type_, shape = type_and_shape(value)
        if type_ is not None:
            return ir.TypeAndShape(type_, shape)
    raise TypeError


def default_of(item: onnx.defs.OpSchema.Attribute) -> ir.Attr | None:
    """Return the default value of an operator's attribute, or None."""
    if not item.default_value.name:
        return None
    return ir.serde.deserialize_attribute(item.default_value)
