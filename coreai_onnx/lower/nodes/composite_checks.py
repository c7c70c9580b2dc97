"""Checks calls of composites and normalizes their attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coreai_onnx.composites.declaration import Attribute, Composite
from coreai_onnx.errors import LoweringError, Where
from coreai_onnx.lower.nodes.values import Value, dtype_of, maybe_dims

# As in Python, an int is a valid float, and a bool a valid int.
_SCALARS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "string": (str,)}
_INDICES = ("int32", "int64")


class CompositeCallError(LoweringError):
    """A composite is called with inputs or attributes that it does not accept."""


class AttributeTypeError(CompositeCallError, TypeError):
    """The type of an attribute differs from the declared type."""


def checked(
    composite: Composite,
    inputs: Sequence[Value | None],
    attributes: Mapping[str, Any],
    where: Where | None,
) -> dict[str, Any]:
    """Check a call and return the attributes of its node.

    Every attribute is written, with its default if the caller passes none, unless its value is
    None.

    Args:
        composite: The declaration.
        inputs: By position; absent ones are None.
        attributes: The attributes that the caller passes.
        where: The location in the user's model.

    Raises:
        AttributeTypeError: If the type of an attribute differs from the declared type.
        CompositeCallError: If an attribute is unknown, or ranks, sizes or dtypes are invalid.
    """
    try:
        written = _typed(composite, attributes)
        dims = _known_dims(composite, inputs)
        _check_dtypes(composite, inputs)
    # The checks below raise plain errors; only here are the composite and the place known.
    except TypeError as error:
        raise AttributeTypeError(f"{composite.name}: {error}", where) from None
    except ValueError as error:
        raise CompositeCallError(f"{composite.name}: {error}", where) from None
    if wrong := composite.size_fault(dims):
        raise CompositeCallError(f"{composite.name}: {wrong}", where)
    # A declared check may read the rank of every input.
    if all(x is None or maybe_dims(x) is not None for x in inputs):
        wrong = composite.check(dims, written)
        if wrong:
            raise CompositeCallError(f"{composite.name}: {wrong}", where)
        written = composite.canonical(dims, written)
    return {name: value for name, value in written.items() if value is not None}


# ---------------------------------------------------------------------- attributes
def _typed(composite: Composite, attributes: Mapping[str, Any]) -> dict[str, Any]:
    declared = {a.name: a for a in composite.attributes}
    unknown = sorted(set(attributes) - set(declared))
    if unknown:
        names = ", ".join(declared) or "none"
        raise ValueError(f"there is no attribute {', '.join(unknown)} (attributes: {names})")
    written: dict[str, Any] = {}
    for name, attribute in declared.items():
        value = attributes.get(name)
        written[name] = _value(attribute, attribute.default if value is None else value)
    written["version"] = composite.version
    return written


def _value(attribute: Attribute, value: Any) -> Any:
    """Return a value in the type of the attribute; a bool is an int.

    Raises:
        TypeError: If the value cannot be converted.
    """
    if value is None:
        return None
    one = attribute.type.removesuffix("s") if attribute.type != "strings" else "string"
    if attribute.type != one:
        if not isinstance(value, list | tuple):
            raise _wrong_type(attribute, value)
        return [_scalar(attribute, one, item) for item in value]
    return _scalar(attribute, one, value)


def _scalar(attribute: Attribute, type_: str, value: Any) -> Any:
    if not isinstance(value, _SCALARS[type_]):
        raise _wrong_type(attribute, value)
    return {"int": int, "float": float, "string": str}[type_](value)


def _wrong_type(attribute: Attribute, value: Any) -> TypeError:
    actual = type(value).__name__
    return TypeError(f"attribute {attribute.name!r} is of type {attribute.type}, not {actual}")


# ---------------------------------------------------------------------- inputs
def _known_dims(
    composite: Composite, inputs: Sequence[Value | None]
) -> dict[str, tuple[int | None, ...]]:
    """Return the dims of the inputs that are present, None for a symbolic one."""
    sizes: dict[str, tuple[int | None, ...]] = {}
    for declared, x in zip(composite.inputs, inputs, strict=False):
        dims = None if x is None else maybe_dims(x)
        if dims is not None:
            sizes[declared.name] = tuple(d if isinstance(d, int) else None for d in dims)
    missing = [
        declared.name
        for index, declared in enumerate(composite.inputs)
        if not declared.optional and (index >= len(inputs) or inputs[index] is None)
    ]
    if missing:
        raise ValueError(f"the input {missing[0]} is missing")
    return sizes


def _check_dtypes(composite: Composite, inputs: Sequence[Value | None]) -> None:
    first = inputs[0]
    assert first is not None
    dtype = _dtype_name(first)
    if dtype not in composite.dtypes:
        raise ValueError(
            f"{composite.inputs[0].name} must be one of {composite.dtypes}, got {dtype}"
        )
    for declared, x in zip(composite.inputs, inputs, strict=False):
        if x is None or x.dtype is None:
            continue
        name = _dtype_name(x)
        if declared.dtype == "T" and name != dtype:
            raise ValueError(f"{declared.name} is {name}, {composite.inputs[0].name} is {dtype}")
        if declared.dtype == "index" and name not in _INDICES:
            raise ValueError(f"{declared.name} must be one of {_INDICES}, got {name}")
        if declared.dtype not in ("T", "any", "index", name):
            raise ValueError(f"{declared.name} is {name}, not {declared.dtype}")


def _dtype_name(x: Value) -> str:
    return str(dtype_of(x)).removeprefix("torch.")
