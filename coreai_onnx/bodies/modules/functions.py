"""What the functions of modules and of delegated parts have in common: attributes and bodies."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
from torch.export import ExportedProgram

from coreai_onnx.errors import ExternalizationError
from coreai_onnx.export.capture.symbols import symbol_names
from coreai_onnx.export.externalize.module_call import ModuleCall
from coreai_onnx.lower.nodes.attributes import plain_value
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.nodes.values import Value
from coreai_onnx.lower.walk.context import Context


class ModuleAttributeTypeError(ExternalizationError, TypeError):
    """A module's attribute has a type ONNX attributes cannot hold."""


def composite_attributes(call: ModuleCall) -> dict[str, Any]:
    """Return the attributes that the spec names, in ONNX form, and the version.

    None is left out; a bool becomes an int, an ``Enum`` its value, a scalar of numpy a number, a
    tuple a list, and a dict its text in JSON. An empty list is one of integers.

    Raises:
        ExternalizationError: If the module has no such attribute.
        ModuleAttributeTypeError: If the value is not a bool, int of 64 bits, float, str, a list of
            one of these, or a dict that JSON can hold.
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
    # Every composite has a version.
    written.setdefault("version", 1)
    return written


def _onnx_value(call: ModuleCall, name: str, value: Any) -> Any:
    plain = plain_value(value)
    if plain is not None:
        return plain
    if isinstance(value, list | tuple) and not value:
        return ir.AttrInt64s(name, [])  # without a type, onnx_ir warns
    if isinstance(value, dict):
        with contextlib.suppress(TypeError, ValueError):
            return json.dumps(value, allow_nan=False)
    raise ModuleAttributeTypeError(
        f"{call.path}: attribute {name!r} of type {type(value).__name__} has no ONNX form",
        advice="bool, int, float, str, lists of these and dicts in JSON form can be attributes",
    )


def declarations(attributes: Mapping[str, Any]) -> list[ir.Attr]:
    """Return the attributes of a function whose calls have these values, which are its defaults."""
    return [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]


@dataclass
class ModuleFunction:
    """A function made from an externalized module, and the nodes that call it.

    Attributes:
        function: The function; renamed when all functions are known.
        weights: Paths in the module of the weights that follow the tensor inputs, in order.
        calls: Nodes that call it.
    """

    function: ir.Function
    weights: tuple[str, ...] = ()
    calls: list[ir.Node] = field(default_factory=list)


def open_body(
    context: Context, program: ExportedProgram | None, name: str
) -> tuple[Context, OpBuilder]:
    """Return the context in which the program of a function is lowered, and a builder of its body.

    Args:
        context: The conversion of the model that calls the function.
        program: The program; None for a graph of the program that calls the function.
        name: The name of the graph.
    """
    graph = ir.Graph([], [], nodes=[], opset_imports={"": context.opset}, name=name)
    scope = Scope(graph, Names(), constants_as_nodes=True)
    inner = Context(
        opset=context.opset,
        oldest=context.oldest,
        composites=context.composites,
        user_lowerings=context.user_lowerings,
        module_calls=context.module_calls,
        symbols=dict(context.symbols) if program is None else symbol_names(program),
        step=context.step,
    )
    inner.share(context)
    return inner, OpBuilder(scope, context.opset, context.composites, context.oldest)


def close_body(op: OpBuilder, outputs: Sequence[Value], names: Sequence[str]) -> None:
    """Make values the outputs of a body, by name, and import the domains of its nodes."""
    graph = op.scope.graph
    for value, name in zip(outputs, names, strict=True):
        # An input, a constant or a value that is an output already needs a node for a second name.
        fresh = value.producer() is not None and not value.is_graph_output()
        result = value if fresh and value.const_value is None else op.Identity(value)
        result.name = op.scope.names.unique(name)
        graph.outputs.append(result)
    for domain in sorted({n.domain for n in graph.all_nodes()} - {""}):
        graph.opset_imports[domain] = 1
