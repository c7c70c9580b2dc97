"""Attributes of a module, as attributes of an ONNX node or function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from coreai_onnx.errors import ExternalizationError
from coreai_onnx.export.externalize.module_call import ModuleCall
from coreai_onnx.lower.build.attributes import plain_value


class ModuleAttributeTypeError(ExternalizationError, TypeError):
    """A module's attribute has a type ONNX attributes cannot hold."""


def composite_attributes(call: ModuleCall) -> dict[str, Any]:
    """Return the attributes that the spec names, in ONNX form, and the version.

    None is left out; a bool becomes an int, an ``Enum`` its value, a tuple a list.

    Raises:
        ExternalizationError: If the module has no such attribute.
        ModuleAttributeTypeError: If the value is not a bool, int, float, str, or a list of one of
            these.
    """
    names = call.spec.composite_attrs
    if call.spec.composite_op_name is None:
        return {}
    written: dict[str, Any] = {}
    for name in names or []:
        if not hasattr(call.module, name):
            raise ExternalizationError(
                f"{call.path}: {type(call.module).__name__} has no attribute {name!r}",
                advice="composite_attrs names attributes of the module instance",
            )
        value = getattr(call.module, name)
        if value is not None:
            written[name] = _onnx_value(call, name, value)
    written.setdefault("version", 1)
    return written


def _onnx_value(call: ModuleCall, name: str, value: Any) -> Any:
    plain = plain_value(value)
    if plain is not None:
        return plain
    raise ModuleAttributeTypeError(
        f"{call.path}: attribute {name!r} of type {type(value).__name__} has no ONNX form",
        advice="bool, int, float, str and lists of these can be attributes",
    )


def declarations(attributes: Mapping[str, Any]) -> list[ir.Attr]:
    """Return the attributes of a function whose calls have these values, which are its defaults."""
    return [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
