"""Structural checks of a graph; passes and runtimes rely on them.

* Every value has a producer, and the nodes form no cycle.
* No function calls itself, and no call has more inputs or outputs than the function.
* Nodes of ONNX operators have the inputs, outputs and attributes of their schema.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

import onnx_ir as ir

from coreai_onnx.model.inventory import STANDARD_DOMAIN, attribute_graphs, graphs, op_name
from coreai_onnx.model.standard.op_schemas import (
    ONNX_DOMAINS,
    imported_version,
    schema_fault,
    schema_of,
    too_few,
    too_many,
)
from coreai_onnx.model.standard_composites import COMPOSITE_SIZES

_Body = ir.Graph | ir.Function
_MOST_BITS = 1 << 66
"""Sizes are signed 64-bit numbers of bytes."""
_UNSIZED = (ir.DataType.STRING, ir.DataType.UNDEFINED)


def arrange(model: ir.Model) -> str:
    """Sort the nodes of every graph topologically, and check the graphs.

    Args:
        model: The model; its nodes are sorted in place if they are out of order.

    Returns:
        What is wrong with the model; empty if it is valid.
    """
    functions = model.functions
    # Not by recursion: a file may nest functions more deeply than Python can recurse.
    callees = {
        key: [node.op_identifier() for node in f.all_nodes() if node.op_identifier() in functions]
        for key, f in functions.items()
    }
    needed: dict[ir.OperatorIdentifier, AbstractSet[ir.Value]] = {}
    try:
        for key in TopologicalSorter(callees).static_order():
            needed[key] = _needed(functions[key], functions, needed)
    except CycleError as error:
        domain, name, _ = error.args[1][0]
        return f"function {op_name(domain, name)} is broken: it calls itself"
    bodies: list[tuple[str, _Body]] = [("the graph", model.graph)]
    bodies += [(f"function {op_name(f.domain, f.name)}", f) for f in functions.values()]
    for name, body in bodies:
        checked = _Checked(functions, body.opset_imports, needed)
        if wrong := checked.fault(body, _Scope((), ())):
            return f"{name} is broken: {wrong}"
        try:
            if not checked.in_order:
                body.sort()
        except ValueError:
            return f"{name} is broken: its nodes read each other in a circle"
    return ""


def size_fault(model: ir.Model) -> str:
    """Return which value is declared larger than any memory, or an empty string."""
    for graph in graphs(model):
        values = (*graph.inputs, *graph.initializers.values())
        for value in (*values, *(result for node in graph for result in node.outputs)):
            shape = value.shape if value.const_value is None else value.const_value.shape
            dims = [dim for dim in shape or () if isinstance(dim, int)]
            # Some exporters write -1 for a size that is unknown.
            if min(dims, default=0) < -1 or exceeds_memory(dims, value.dtype):
                return f"{value.name!r} has the shape {dims}, which no memory can hold"
    return ""


def exceeds_memory(dims: Iterable[int], dtype: ir.DataType | None) -> bool:
    """Return whether a tensor has more bytes than a signed 64-bit number counts.

    Sizes beside a 0 count: numpy and onnxruntime multiply them, too.
    """
    bits = 8 if dtype is None or dtype in _UNSIZED else dtype.bitwidth
    return math.prod(max(dim, 1) for dim in dims) * bits >= _MOST_BITS


class _Scope(NamedTuple):
    """The values that a node sees, one set per graph around it: all, and those computed so far."""

    every: tuple[AbstractSet[ir.Value], ...]
    ready: tuple[AbstractSet[ir.Value], ...]


class _Checked:
    """One body with its subgraphs.

    Attributes:
        in_order: Whether every node so far, with its subgraphs, comes after the nodes whose results
            it reads.
    """

    def __init__(
        self,
        functions: Mapping[ir.OperatorIdentifier, ir.Function],
        opsets: Mapping[str, int],
        needed: Mapping[ir.OperatorIdentifier, AbstractSet[ir.Value]],
    ) -> None:
        self.in_order = True
        self._functions = functions
        self._opsets = opsets
        self._needed = needed

    def fault(self, graph: _Body, outer: _Scope) -> str:
        """Return what is wrong with a graph.

        Args:
            graph: The graph.
            outer: The values of the enclosing graphs.
        """
        ready = set(graph.inputs)
        if isinstance(graph, ir.Graph):
            ready |= set(graph.initializers.values())
        every = ready | {value for node in graph for value in node.outputs}
        scope = _Scope((*outer.every, every), (*outer.ready, ready))
        for node in graph:
            if wrong := self._interface_fault(node):
                return f"{node.op_type} node {node.name!r} {wrong}"
            for value in node.inputs:
                if value is not None and not self._is_produced(value, scope):
                    return (
                        f"{node.op_type} node {node.name!r} reads {value.name!r}, "
                        "which nothing produces"
                    )
            for attribute in node.attributes.values():
                for inner in attribute_graphs(attribute):
                    if wrong := self.fault(inner, scope):
                        return wrong
            ready |= set(node.outputs)
        for value in graph.outputs:
            if not self._is_produced(value, scope):
                return f"nothing produces the output {value.name!r}"
        return ""

    def _is_produced(self, value: ir.Value, scope: _Scope) -> bool:
        """Whether a graph or one around it has a value; clears ``in_order`` if it comes later."""
        if any(value in values for values in scope.ready):
            return True
        self.in_order = False
        return any(value in values for values in scope.every)

    def _interface_fault(self, node: ir.Node) -> str:
        if any(a.type == ir.AttributeType.UNDEFINED for a in node.attributes.values()):
            return "has an attribute without a type"
        if node.domain == STANDARD_DOMAIN:
            sizes = COMPOSITE_SIZES.get(node.op_type.partition(".")[0])
            # Kernels read the inputs of a composite by position, whatever its body in the file
            # says.
            wrong = too_few(node, sizes[0], 1) or too_many(node, *sizes[1:]) if sizes else ""
            if wrong:
                return wrong
        function = self._functions.get(node.op_identifier())
        if function is not None:
            return self._call_fault(node, function)
        version = imported_version(node.domain, self._opsets)
        if version is None and node.domain in ONNX_DOMAINS:
            return "is an operator of ONNX, of which no opset is imported"
        return "" if version is None else schema_fault(node, version)

    def _call_fault(self, node: ir.Node, function: ir.Function) -> str:
        if wrong := too_many(node, len(function.inputs), len(function.outputs)):
            return wrong
        needed = self._needed[function.identifier()]
        for index, parameter in enumerate(function.inputs):
            is_present = index < len(node.inputs) and node.inputs[index] is not None
            if not is_present and parameter in needed:
                return f"lacks the input {parameter.name!r}, which the function needs"
        return ""


def _needed(
    function: ir.Function,
    functions: Mapping[ir.OperatorIdentifier, ir.Function],
    needed: Mapping[ir.OperatorIdentifier, AbstractSet[ir.Value]],
) -> AbstractSet[ir.Value]:
    """Return the inputs of a function that its body requires.

    Args:
        function: The function.
        functions: All functions.
        needed: The required inputs of the functions that it calls.
    """
    required: set[ir.Value | None] = set()
    for node in function.all_nodes():
        key = node.op_identifier()
        if key in functions:
            pairs = zip(functions[key].inputs, node.inputs, strict=False)
            required.update(argument for parameter, argument in pairs if parameter in needed[key])
            continue
        version = imported_version(node.domain, function.opset_imports)
        schema = None if version is None else schema_of(node.op_type, version, node.domain)
        if schema is not None:
            required.update(node.inputs[: schema.min_input])
    return {value for value in required if value is not None}
