"""What ONNX's schemas say about a call: arity, names of attributes, number of outputs."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from types import FrameType

import onnx

from .errors import failure

# What ONNX's schemas have as the maximum number of variadic inputs.
_NO_LIMIT = 2**31 - 1


def schema_of(
    domain: str, op_type: str, opsets: Mapping[str, int]
) -> onnx.defs.OpSchema | None:
    """Return ONNX's schema of an operator at the version in use, or None."""
    version = opsets.get(domain)
    if version is None:
        return None
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


def check_call(
    domain: str,
    op_type: str,
    inputs: int,
    attributes: Collection[str],
    opsets: Mapping[str, int],
    frame: FrameType,
) -> None:
    """Check a call against the schema.

    Raises:
        BuildError: If the operator is unknown, or takes other inputs or attributes.
    """
    wrong = fault_of(domain, op_type, inputs, attributes, opsets)
    if wrong:
        raise failure(frame, wrong)


def fault_of(
    domain: str,
    op_type: str,
    inputs: int,
    attributes: Collection[str],
    opsets: Mapping[str, int],
) -> str:
    """Return why a schema does not allow a call; empty if it does, or if there is no schema."""
    schema = schema_of(domain, op_type, opsets)
    if schema is None:
        return "" if domain else _unknown(op_type, opsets.get("", 1))
    low, high = schema.min_input, schema.max_input
    if not low <= inputs <= high:
        many = f"{low} or more" if high == _NO_LIMIT else f"{low} to {high}"
        return f"{op_type} takes {many} inputs, not {inputs}"
    for name in attributes:
        if name not in schema.attributes:
            names = ", ".join(schema.attributes) or "none"
            return f"{op_type} has no attribute {name!r}; it has {names}"
    for name, item in schema.attributes.items():
        if item.required and name not in attributes:
            return f"{op_type} needs the attribute {name!r}"
    return ""


def _unknown(op_type: str, version: int) -> str:
    names = {schema.name for schema in onnx.defs.get_all_schemas()}
    close = difflib.get_close_matches(op_type, sorted(names), n=1)
    if op_type in names:
        return f"{op_type} is not in opset {version}"
    similar = f"; did you mean {close[0]}?" if close else ""
    return f"there is no operator {op_type!r} in opset {version}{similar}"


def default_outputs(domain: str, op_type: str, opsets: Mapping[str, int]) -> int:
    """Return the number of outputs of a call that does not state it."""
    schema = schema_of(domain, op_type, opsets)
    return 1 if schema is None else max(schema.min_output, 1)
