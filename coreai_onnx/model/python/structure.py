"""The structure of nodes as text that is equal for equal computations, whatever their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from coreai_onnx.model.inventory import attribute_graphs
from coreai_onnx.model.python.constants import Constants
from coreai_onnx.model.standard.model_protos import subgraphs


def operands(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node uses: its inputs, and what its branches read from outside."""
    yield from (value for value in node.inputs if value is not None)
    for graph in subgraphs(node):
        yield from captured(graph)


def captured(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the values that a graph reads from enclosing graphs, in order of use."""
    inside = {*graph.inputs, *graph.initializers.values()}
    for node in graph:
        yield from (value for value in operands(node) if value not in inside)
        inside.update(node.outputs)
    yield from (value for value in graph.outputs if value is not None and value not in inside)


def described(
    nodes: Sequence[ir.Node], path: tuple[str, ...], constants: Constants
) -> tuple[list[str], list[ir.Value]]:
    """Describe the nodes of a module.

    Returns:
        A line per node, in which weights are named relative to the module, and the values that the
        nodes take from outside, in order of use.
    """
    description = _Description(path, constants)
    return description.nodes(nodes), description.outside


class _Description:
    def __init__(self, path: tuple[str, ...], constants: Constants) -> None:
        self.path = path
        self.constants = constants
        self.outside: list[ir.Value] = []
        self.tokens: dict[ir.Value | None, str] = {None: "-"}

    def nodes(self, nodes: Sequence[ir.Node]) -> list[str]:
        return [self._node(node) for node in nodes if not self.constants.is_literal_node(node)]

    def _node(self, node: ir.Node) -> str:
        parts = [*node.op_identifier(), *(self._token(value) for value in node.inputs), "|"]
        for name, attribute in sorted(node.attributes.items()):
            graphs = attribute_graphs(attribute)
            parts += [self._graph(graph) for graph in graphs]
            parts.append(name if graphs else _attribute(attribute))
        for value in node.outputs:
            self.tokens[value] = f"v{len(self.tokens)}"
        return " ".join([*parts, str(len(node.outputs))])

    def _graph(self, graph: ir.Graph) -> str:
        # A function is written with the types of these inputs, so that equal ones must have equal
        # types.
        for value in graph.inputs:
            self.tokens[value] = f"v{len(self.tokens)} {value.type} {value.shape}"
        inside = [*map(self._token, graph.inputs), *self.nodes(list(graph))]
        return "{" + "; ".join([*inside, *map(self._token, graph.outputs)]) + "}"

    def _token(self, value: ir.Value | None) -> str:
        if value in self.tokens:
            return self.tokens[value]
        assert value is not None
        token = self.constants.relative(value, self.path)
        if token is None:
            token = f"x{len(self.outside)}"
            self.outside.append(value)
        self.tokens[value] = token
        return token


def _attribute(attribute: ir.Attr) -> str:
    data: bytes = ir.to_proto(attribute).SerializeToString(deterministic=True)
    return data.hex()
