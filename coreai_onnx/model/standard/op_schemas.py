"""ONNX's operator schemas: which version of a domain defines an operator, and what it requires."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping

import onnx.defs
import onnx_ir as ir

ONNX_DOMAINS = ("", "ai.onnx")
"""The two names of ONNX's own domain."""
SCHEMA_DOMAINS = (*ONNX_DOMAINS, "ai.onnx.ml")
"""Domains whose ops have a schema in onnx."""
_DTYPES = ("to", "dtype", "output_dtype")
"""Attributes of ONNX's operators that hold a data type."""


def plain_domain(domain: str) -> str:
    """Return the name under which onnx knows a domain: its own is the empty text."""
    return "" if domain in ONNX_DOMAINS else domain


def imported_version(domain: str, opsets: Mapping[str, int]) -> int | None:
    """Return the version of a domain that a graph or function imports; None if it imports none."""
    names = ONNX_DOMAINS if domain in ONNX_DOMAINS else (domain,)
    return next((opsets[name] for name in names if name in opsets), None)


@functools.cache
def schema_of(op_type: str, version: int, domain: str = "") -> onnx.defs.OpSchema | None:
    """Return the ONNX schema of an operator in an opset; None if ONNX does not define it."""
    try:
        return onnx.defs.get_schema(op_type, version, plain_domain(domain))
    except onnx.defs.SchemaError:
        return None


@functools.cache
def first_version(op_type: str, domain: str = "") -> int | None:
    """Return the first opset that defines an operator; None if ONNX does not define it."""
    versions = (
        schema.since_version
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.name == op_type and schema.domain == plain_domain(domain)
    )
    return min(versions, default=None)


def has_schema(domain: str, op_type: str, opsets: Mapping[str, int]) -> bool:
    """Return whether onnx defines an op at the imported version of its domain."""
    if domain not in SCHEMA_DOMAINS:
        return False
    return schema_of(op_type, imported_version(domain, opsets) or 1, domain) is not None


def schema_fault(node: ir.Node, version: int) -> str:
    """Return what is wrong with a node; empty if it conforms, or if ONNX does not define its op.

    Args:
        node: The node. Unknown attributes are allowed, as in files of other exporters.
        version: The imported version of its domain.
    """
    schema = schema_of(node.op_type, version, node.domain)
    if schema is None:
        since = first_version(node.op_type, node.domain)
        late = since is not None and since > version
        return f"is an operator since opset {since}, this one is {version}" if late else ""
    if schema.deprecated:
        return ""
    if wrong := too_many(node, schema.max_input, schema.max_output):
        return wrong
    if wrong := too_few(node, _required(schema), schema.min_output):
        return wrong
    if len(node.inputs) < schema.min_input:
        return f"has {len(node.inputs)} inputs, at least {schema.min_input} are needed"
    for name, declared in schema.attributes.items():
        attribute = node.attributes.get(name)
        if attribute is None and declared.required:
            return f"lacks the attribute {name!r}"
        if attribute is not None and attribute.type.value != int(declared.type):  # type: ignore[call-overload]
            return f"has the attribute {name!r} of the type {attribute.type.name}"
        if attribute is not None and name in _DTYPES and not attribute.is_ref():
            least = ir.DataType.FLOAT if declared.required else ir.DataType.UNDEFINED
            if not least <= attribute.as_int() <= max(ir.DataType):
                return f"has the unknown data type {attribute.as_int()}"
    return ""


def _required(schema: onnx.defs.OpSchema) -> int:
    """Return how many leading inputs must be present; Scan 8 begins with an optional one."""
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    required = itertools.takewhile(lambda parameter: parameter.option == single, schema.inputs)
    return len(list(required))


def too_many(node: ir.Node, inputs: int, outputs: int) -> str:
    """Return which of the inputs and outputs exceed their limit; empty if none."""
    for kind, count, limit in (
        ("inputs", len(node.inputs), inputs),
        ("outputs", len(node.outputs), outputs),
    ):
        if count > limit:
            return f"has {count} {kind}, at most {limit} are allowed"
    return ""


def too_few(node: ir.Node, inputs: int, outputs: int) -> str:
    """Return which of the leading inputs and the outputs are missing; empty if none."""
    if len(node.outputs) < outputs:
        return f"has {len(node.outputs)} outputs, at least {outputs} are needed"
    given = sum(value is not None for value in node.inputs[:inputs])
    return f"has {given} of the {inputs} inputs that it needs" if given < inputs else ""
