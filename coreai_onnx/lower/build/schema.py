"""Dtype constraints from ONNX operator schemas."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import onnx_ir as ir

from coreai_onnx.model.standard.op_schemas import first_version, schema_of


@dataclass(frozen=True)
class OpSchema:
    """The part of an operator schema that the builder needs.

    Attributes:
        inputs: Type variable (or concrete type) of each formal input.
        variadic: Whether the last formal input repeats.
        outputs: Type variable (or concrete type) of each formal output.
        only: Type variables that allow a single dtype, with that dtype.
        since_version: The opset that introduced this version of the operator.
    """

    inputs: tuple[str, ...]
    variadic: bool
    outputs: tuple[str, ...]
    only: dict[str, ir.DataType]
    since_version: int

    def input_type(self, index: int) -> str | None:
        """Return the type variable of the input at ``index``."""
        if index < len(self.inputs):
            return self.inputs[index]
        return self.inputs[-1] if self.variadic and self.inputs else None

    def concrete(self, type_name: str) -> ir.DataType | None:
        """Return the dtype of a type variable or type string, if it allows only one."""
        return self.only.get(type_name) or _parse_tensor_type(type_name)


_NO_OPERATOR = 'op.node("Name", x, domain="my.domain") calls an operator of another domain'


@functools.cache
def op_schema(op_type: str, opset: int) -> OpSchema:
    """Return the schema of an ``ai.onnx`` operator at an opset.

    Raises:
        KeyError: If the operator is not in that opset; its arguments are the message, which names
            the first opset with it, and the advice.
    """
    schema = schema_of(op_type, opset)
    if schema is None:
        first = first_version(op_type)
        if first is None:
            raise KeyError(f"ONNX has no operator {op_type}", _NO_OPERATOR)
        raise KeyError(
            f"ONNX has {op_type} in opset {first}, not in opset {opset}",
            "choose a higher opset_version",
        )
    constraints = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    only = {
        name: parsed
        for name, allowed in constraints.items()
        if len(allowed) == 1 and (parsed := _parse_tensor_type(next(iter(allowed)))) is not None
    }
    return OpSchema(
        inputs=tuple(p.type_str for p in schema.inputs),
        variadic=bool(schema.inputs) and "Variadic" in str(schema.inputs[-1].option),
        outputs=tuple(p.type_str for p in schema.outputs),
        only=only,
        since_version=schema.since_version,
    )


def _parse_tensor_type(type_name: str) -> ir.DataType | None:
    """Return the dtype of ``tensor(int64)``; None for a type variable or another type."""
    if not type_name.startswith("tensor("):
        return None
    inner = type_name[len("tensor(") : -1]
    aliases = {"float": "FLOAT", "double": "DOUBLE"}
    return ir.DataType[aliases.get(inner, inner.upper())]
