"""What a graph has to be before anything works on it; passes and runtimes take it for granted.

* Every value comes from somewhere, and nodes do not read each other in a circle.
* No function calls itself, and no call has more inputs or outputs than the function.
* Nodes of ONNX's own operators have the inputs, outputs and attributes of their schema.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

import onnx.defs
import onnx_ir as ir

from coreai_onnx.contents import attribute_graphs, op_name

_STANDARD_DOMAINS = ("", "ai.onnx")
_Body = ir.Graph | ir.Function


def arrange(model: ir.Model) -> str:
    """Bring the nodes of every graph into an order in which they can run.

    Args:
        model: The model; its nodes are sorted in place, if they are out of order.

    Returns:
        What is wrong with the model; empty if nothing is.
    """
    bodies: list[tuple[str, _Body]] = [("the graph", model.graph)]
    for function in model.functions.values():
        bodies.append((f"function {op_name(function.domain, function.name)}", function))
    needed: dict[ir.Function, AbstractSet[ir.Value]] = {}
    for name, body in bodies:
        checked = _Checked(model.functions, body.opset_imports, needed)
        if wrong := checked.fault(body, ()):
            return f"{name} is broken: {wrong}"
        if not checked.in_order and not _sorted(body):
            return f"{name} is broken: its nodes read each other in a circle"
    recursive = _recursive(model.functions)
    return f"function {op_name(*recursive[:2])} is broken: it calls itself" if recursive else ""


class _Checked:
    """One body with its subgraphs.

    Attributes:
        in_order: Whether every node so far comes after those that it reads.
    """

    def __init__(
        self,
        functions: Mapping[ir.OperatorIdentifier, ir.Function],
        opsets: Mapping[str, int],
        needed: dict[ir.Function, AbstractSet[ir.Value]],
    ) -> None:
        self.in_order = True
        self._functions = functions
        self._opsets = opsets
        self._needed = needed

    def fault(self, graph: _Body, outer: tuple[AbstractSet[ir.Value], ...]) -> str:
        """Return what is wrong with a graph.

        Args:
            graph: The graph.
            outer: The values of the graphs around it, one set for each.
        """
        ready = set(graph.inputs)
        if isinstance(graph, ir.Graph):
            ready |= set(graph.initializers.values())
        every = ready | {value for node in graph for value in node.outputs}
        for node in graph:
            if wrong := self._interface_fault(node):
                return f"{node.op_type} node {node.name!r} {wrong}"
            for value in node.inputs:
                if value is None or value in ready or any(value in values for values in outer):
                    continue
                if value not in every:
                    return (
                        f"{node.op_type} node {node.name!r} reads {value.name!r}, "
                        "which nothing produces"
                    )
                self.in_order = False
            for attribute in node.attributes.values():
                for inner in attribute_graphs(attribute):
                    if wrong := self.fault(inner, (*outer, every)):
                        return wrong
            ready |= set(node.outputs)
        for value in graph.outputs:
            if value not in every and not any(value in values for values in outer):
                return f"nothing produces the output {value.name!r}"
        return ""

    def _interface_fault(self, node: ir.Node) -> str:
        """Return what is wrong with the inputs, outputs and attributes of a node."""
        function = self._functions.get(node.op_identifier())
        if any(a.type == ir.AttributeType.UNDEFINED for a in node.attributes.values()):
            return "has an attribute without a type"
        if function is not None:
            return self._call_fault(node, function)
        if node.domain in _STANDARD_DOMAINS and not {*_STANDARD_DOMAINS} & set(self._opsets):
            return "is an operator of ONNX, of which no opset is imported"
        schema = _schema_of(node, self._opsets)
        return "" if schema is None else _schema_fault(node, schema)

    def _call_fault(self, node: ir.Node, function: ir.Function) -> str:
        """Return what is wrong with a call of a function."""
        if wrong := _too_many(node, len(function.inputs), len(function.outputs)):
            return wrong
        if function not in self._needed:
            self._needed[function] = _needed(function)
        for index, parameter in enumerate(function.inputs):
            given = index < len(node.inputs) and node.inputs[index] is not None
            if not given and parameter in self._needed[function]:
                return f"lacks the input {parameter.name!r}, which the function needs"
        return ""


def _too_many(node: ir.Node, inputs: int, outputs: int) -> str:
    for kind, count, limit in (
        ("inputs", len(node.inputs), inputs),
        ("outputs", len(node.outputs), outputs),
    ):
        if count > limit:
            return f"has {count} {kind}, at most {limit} are allowed"
    return ""


def _needed(function: ir.Function) -> AbstractSet[ir.Value]:
    """Return the inputs that an operator of a function's body cannot do without."""
    found: set[ir.Value | None] = set()
    for node in function.all_nodes():
        schema = _schema_of(node, function.opset_imports)
        if schema is not None:
            found.update(node.inputs[: schema.min_input])
    return {value for value in found if value is not None}


def _schema_fault(node: ir.Node, schema: onnx.defs.OpSchema) -> str:
    if wrong := _too_many(node, schema.max_input, schema.max_output):
        return wrong
    if len(node.outputs) < schema.min_output:
        return f"has {len(node.outputs)} outputs, at least {schema.min_output} are needed"
    given = sum(value is not None for value in node.inputs[: schema.min_input])
    if given < schema.min_input:
        return f"has {given} of the {schema.min_input} inputs that it needs"
    for name, declared in schema.attributes.items():
        attribute = node.attributes.get(name)
        if attribute is None and declared.required:
            return f"lacks the attribute {name!r}"
        if attribute is not None and attribute.type.value != declared.type.value:
            return f"has the attribute {name!r} of the type {attribute.type.name}"
    return ""


def _schema_of(node: ir.Node, opsets: Mapping[str, int]) -> onnx.defs.OpSchema | None:
    """Return what ONNX says of the operator of a node; None where it does not know it."""
    domain = "" if node.domain in _STANDARD_DOMAINS else node.domain
    version = opsets.get(domain, None if domain else opsets.get("ai.onnx"))
    return None if version is None else _schema(node.op_type, version, domain)


@functools.cache
def _schema(op_type: str, version: int, domain: str) -> onnx.defs.OpSchema | None:
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


def _sorted(body: _Body) -> bool:
    """Sort the nodes of a body; return False if they read each other in a circle."""
    try:
        body.sort()
    except ValueError:
        return False
    return True


def _recursive(
    functions: Mapping[ir.OperatorIdentifier, ir.Function],
) -> ir.OperatorIdentifier | None:
    """Return a function that calls itself, be it through others."""
    done: set[ir.OperatorIdentifier] = set()
    for root in functions:
        path: dict[ir.OperatorIdentifier, Iterator[ir.OperatorIdentifier]] = {}
        waiting = [root]
        while waiting or path:
            if waiting:
                key = waiting.pop()
                if key in path:
                    return key
                if key in done:
                    continue
                path[key] = iter(_called(functions[key], functions))
            last, called = next(reversed(path.items()))
            following = next(called, None)
            if following is None:
                del path[last]
                done.add(last)
            else:
                waiting.append(following)
    return None


def _called(
    function: ir.Function, functions: Mapping[ir.OperatorIdentifier, ir.Function]
) -> list[ir.OperatorIdentifier]:
    calls = dict.fromkeys(node.op_identifier() for node in function.all_nodes())
    return [key for key in calls if key in functions]
