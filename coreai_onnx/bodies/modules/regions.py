"""Calls of regions (``torch.compiler.nested_compile_region``), and the functions they call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import sympy
import torch
from torch import fx

from coreai_onnx.bodies.modules.functions import ModuleFunction, close_body, open_body
from coreai_onnx.composites.declaration import MODULE_DOMAIN
from coreai_onnx.lower.control_flow.nested import as_value, examples_of, results_of
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value, ir_dtype_of
from coreai_onnx.lower.walk.context import Context
from coreai_onnx.lower.walk.location import called_function, where_of
from coreai_onnx.lower.walk.walker import Walker


def call_region(
    walker: Walker, node: fx.Node, arguments: Sequence[Any], functions: dict[Any, ModuleFunction]
) -> list[Any]:
    """Lower ``invoke_subgraph(graph, identifier, *operands)`` to a call of a function.

    Args:
        walker: Walks the graph of the call.
        node: The call.
        arguments: Its arguments, with values for nodes.
        functions: Receives the function of a graph that is called for the first time.
    """
    graph, _, *operands = arguments
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    inputs = {
        placeholder: as_value(walker.op, operand, placeholder.meta["val"])
        for placeholder, operand in zip(placeholders, operands, strict=True)
        if operand is not None
    }
    key = (id(graph), tuple(ir_dtype_of(value) for value in inputs.values()))
    if key not in functions:
        functions[key] = ModuleFunction(_function(walker.context, node, graph, inputs))
    function = functions[key]
    name, domain = function.function.name, function.function.domain
    outputs = walker.op.call(
        domain, name, list(inputs.values()), {}, outputs=len(function.function.outputs)
    )
    for output, inner in zip(outputs, function.function.outputs, strict=True):
        if inner.dtype is not None:
            output.dtype = inner.dtype
    producer = outputs[0].producer()
    assert producer is not None
    function.calls.append(producer)
    return results_of(walker, node, outputs)


def _function(
    context: Context, node: fx.Node, graph: fx.GraphModule, arguments: dict[fx.Node, Value]
) -> ir.Function:
    inner, op = open_body(context, None, node.name)
    module = where_of(node).module
    inputs = [
        _input(inner, op, n, arguments[n], module) if n in arguments else None
        for n in graph.graph.nodes
        if n.op == "placeholder"
    ]
    results = Walker(inner, op, graph).walk(graph.graph, inputs)
    outputs = [as_value(op, *pair) for pair in zip(results, examples_of(node), strict=True)]
    names = ["output"] if len(outputs) == 1 else [f"output_{i}" for i in range(len(outputs))]
    close_body(op, outputs, names)
    return ir.Function(MODULE_DOMAIN, _name(node, graph), graph=op.scope.graph, attributes=[])


def _input(context: Context, op: OpBuilder, node: fx.Node, argument: Value, module: str) -> Any:
    """Append an input for a placeholder; return the value, or the number that it holds.

    A weight has the name of its path in the module that is called, others are ``arg0`` and so on:
    torch keeps no names of parameters.
    """
    scope, example = op.scope, node.meta["val"]
    weight = argument.name if argument.is_initializer() and argument.name else ""
    local_name = weight.removeprefix(f"{module}.") if module else weight
    name = scope.names.unique(local_name or node.name.removesuffix("_1"))
    if isinstance(example, torch.Tensor):
        value = context.value_like(name, example)
        value.dtype = ir_dtype_of(argument)
        scope.dims.bind_axes(value, value.meta["dims"])
        scope.graph.inputs.append(value)
        return value
    value = ir.Value(name=name, type=ir.TensorType(ir_dtype_of(argument)))
    value.meta["dims"] = ()
    scope.graph.inputs.append(value)
    number = context.expression(example)
    if isinstance(number, sympy.Symbol):
        scope.dims.bind_scalar(number, value)
    return number


def _name(node: fx.Node, graph: fx.GraphModule) -> str:
    """Return the name of the marked function, or the class of a module whose forward is marked."""
    # Not every node has a stack: those of sizes have none after decompositions.
    names = (called_function(node, inside) for inside in graph.graph.nodes)
    name = next(filter(None, names), "")
    if name == "forward":
        name = where_of(node).module_class
    return name if name.isidentifier() else "region"
