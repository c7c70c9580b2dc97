"""ONNX's operator schemas: the versions of an operator, its types, and what it requires."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import onnx.defs
import onnx_ir as ir

ONNX_DOMAINS = ("", "ai.onnx")
"""The two names of ONNX's own domain."""
SCHEMA_DOMAINS = (*ONNX_DOMAINS, "ai.onnx.ml")
"""Domains whose ops have a schema in onnx."""
RANDOM_OPS = frozenset(
    """RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial
    Bernoulli""".split()
)
"""Operators whose results differ from run to run: two equal nodes are not one, and none is
computed ahead of time. A Dropout in training mode draws as well; its mode is an input."""
_DTYPES = ("to", "dtype", "output_dtype")
"""Attributes of ONNX's operators that hold a data type."""


def plain_domain(domain: str) -> str:
    """Return the name under which onnx knows a domain: its own is the empty text."""
    return "" if domain in ONNX_DOMAINS else domain


def imported_version(domain: str, opsets: Mapping[str, int]) -> int | None:
    """Return the version of a domain that a graph or function imports, or None."""
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


@dataclass(frozen=True)
class OpTypes:
    """The types of an operator's inputs and outputs.

    Attributes:
        inputs: Type variable (or concrete type) of each formal input.
        variadic: Whether the last formal input repeats.
        outputs: Type variable (or concrete type) of each formal output.
        only: Type variables that allow a single dtype, with that dtype.
    """

    inputs: tuple[str, ...]
    variadic: bool
    outputs: tuple[str, ...]
    only: Mapping[str, ir.DataType]

    def input_type(self, index: int) -> str | None:
        """Return the type variable of the input at ``index``."""
        if index < len(self.inputs):
            return self.inputs[index]
        return self.inputs[-1] if self.variadic and self.inputs else None

    def concrete(self, type_name: str) -> ir.DataType | None:
        """Return the dtype of a type variable or type string, if it allows only one."""
        return self.only.get(type_name) or _parse_tensor_type(type_name)


@functools.cache
def types_of(op_type: str, opset: int) -> OpTypes:
    """Return the types of an operator that ``ai.onnx`` defines at an opset."""
    schema = schema_of(op_type, opset)
    assert schema is not None, op_type
    dtypes = {
        constraint.type_param_str: _parse_tensor_type(next(iter(constraint.allowed_type_strs)))
        for constraint in schema.type_constraints
        if len(constraint.allowed_type_strs) == 1
    }
    return OpTypes(
        inputs=tuple(p.type_str for p in schema.inputs),
        variadic=bool(schema.inputs) and "Variadic" in str(schema.inputs[-1].option),
        outputs=tuple(p.type_str for p in schema.outputs),
        only={name: dtype for name, dtype in dtypes.items() if dtype is not None},
    )


def _parse_tensor_type(type_name: str) -> ir.DataType | None:
    """Return the dtype of ``tensor(int64)``; None for a type variable or another type."""
    if not type_name.startswith("tensor("):
        return None
    return ir.DataType[type_name[len("tensor(") : -1].upper()]


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
            # In an optional attribute, 0 means that the operator chooses the type itself.
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
    """Return which of the inputs and outputs exceed their limit, or an empty string."""
    for kind, count, limit in (
        ("inputs", len(node.inputs), inputs),
        ("outputs", len(node.outputs), outputs),
    ):
        if count > limit:
            return f"has {count} {kind}, at most {limit} are allowed"
    return ""


def too_few(node: ir.Node, inputs: int, outputs: int) -> str:
    """Return which of the leading inputs and the outputs are missing, or an empty string."""
    if len(node.outputs) < outputs:
        return f"has {len(node.outputs)} outputs, at least {outputs} are needed"
    count = sum(value is not None for value in node.inputs[:inputs])
    return f"has {count} of the {inputs} inputs that it needs" if count < inputs else ""
