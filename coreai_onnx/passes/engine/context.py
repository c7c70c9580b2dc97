"""Data attached to a graph-surgeon graph: its source, its constants, its names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import onnx_graphsurgeon as gs
import onnx_ir as ir

Kind = Literal["main", "function", "subgraph"]


class UniqueNames:
    """The names used in one main graph or function body, subgraphs included.

    Graph-surgeon silently treats two tensors with one name as the same tensor, so every name is
    assigned here.
    """

    def __init__(self) -> None:
        """Start without names."""
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def claim(self, wanted: str) -> str:
        """Reserve and return ``wanted``, or ``wanted_1``, ``wanted_2`` … if it is in use."""
        name = wanted
        while name in self._taken:
            self._next[wanted] = self._next.get(wanted, 0) + 1
            name = f"{wanted}_{self._next[wanted]}"
        self._taken.add(name)
        return name


@dataclass
class GraphContext:
    """Information that a graph-surgeon graph does not hold.

    Attributes:
        kind: The model's graph, a function's body, or a subgraph of a node.
        source: The graph or function it was imported from; None for a graph created by a pass.
        names: The names in use; one object for a root graph and all its subgraphs.
        constants: Initializers and ``Constant`` nodes in order, used or not.
        pure_calls: (domain, name) of the model's functions without random ops.
        bodies: The model's functions, which ``bodies.model_bodies`` returns; None until the runner
            sets it.
    """

    kind: Kind
    source: ir.Graph | ir.Function | None
    names: UniqueNames
    constants: list[gs.Constant] = field(default_factory=list)
    pure_calls: frozenset[tuple[str, str]] = frozenset()
    bodies: object | None = None


def context_of(graph: gs.Graph) -> GraphContext:
    """Return the context that the importer attached to ``graph``.

    Raises:
        LookupError: The graph was not imported (a pass created it).
    """
    context = graph.__dict__.get("context")
    if not isinstance(context, GraphContext):
        raise LookupError(
            f"graph {graph.name!r} did not come through coreai_onnx.passes.engine.surgeon"
        )
    return context


def attribute_graphs(node: gs.Node) -> list[gs.Graph]:
    """Return the subgraphs that a node's attributes hold, in order."""
    graphs: list[gs.Graph] = []
    if not node.attrs:
        return graphs
    for value in node.attrs.values():
        if isinstance(value, gs.Graph):
            graphs.append(value)
        elif isinstance(value, list) and value and isinstance(value[0], gs.Graph):
            graphs.extend(value)
    return graphs


def adopt_constants(root: gs.Graph) -> None:
    """Add every constant that a pass created to the root graph, where it is visible everywhere."""
    contexts = [g.context for g in with_subgraphs(root) if "context" in g.__dict__]
    owned = {id(constant) for context in contexts for constant in context.constants}
    mine = context_of(root).constants
    for tensor in reads_in(root):
        if isinstance(tensor, gs.Constant) and id(tensor) not in owned:
            owned.add(id(tensor))
            mine.append(tensor)


def reads_of(node: gs.Node) -> Iterator[gs.Tensor]:
    """Yield the tensors that a node reads, also inside its subgraphs."""
    yield from node.inputs
    for graph in attribute_graphs(node):
        yield from reads_in(graph)


def reads_in(root: gs.Graph) -> Iterator[gs.Tensor]:
    """Yield the tensors that the nodes of a graph and its subgraphs read, and their outputs."""
    for graph in with_subgraphs(root):
        for node in graph.nodes:
            yield from node.inputs
        yield from graph.outputs


def with_subgraphs(graph: gs.Graph) -> Iterator[gs.Graph]:
    """Yield ``graph`` and every graph inside it, outer before inner."""
    yield graph
    for node in graph.nodes:
        for inner in attribute_graphs(node):
            yield from with_subgraphs(inner)


def called_functions(graph: gs.Graph, functions: Sequence[gs.Function]) -> list[gs.Function]:
    """Return the functions that a graph calls, directly or indirectly, in the given order."""
    bodies = {(f.domain, f.name): f for f in functions}
    used: set[tuple[str, str]] = set()
    waiting = [graph]
    while waiting:
        for inner in with_subgraphs(waiting.pop()):
            for node in inner.nodes:
                call = (node.domain or "", node.op)
                if call in bodies and call not in used:
                    used.add(call)
                    waiting.append(bodies[call])
    return [f for f in functions if (f.domain, f.name) in used]
