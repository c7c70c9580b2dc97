"""Data attached to a graph-surgeon graph: its source, its constants, its names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import onnx_graphsurgeon as gs
import onnx_ir as ir

if TYPE_CHECKING:
    from coreai_onnx.passes.engine.bodies import Bodies

Kind = Literal["main", "function", "subgraph"]


class Names:
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
class Scope:
    """Information that a graph-surgeon graph does not hold.

    Attributes:
        kind: The model's graph, a function's body, or a subgraph of a node.
        source: The graph or function it was imported from; None for a graph created by a pass.
        names: The names in use; one object for a root graph and all its subgraphs.
        constants: Initializers and ``Constant`` nodes in order, used or not.
        pure_calls: (domain, name) of the model's functions without random ops.
        bodies: The model's functions; None until the runner sets it.
    """

    kind: Kind
    source: ir.Graph | ir.Function | None
    names: Names
    constants: list[gs.Constant] = field(default_factory=list)
    pure_calls: frozenset[tuple[str, str]] = frozenset()
    bodies: Bodies | None = None


def scope_of(graph: gs.Graph) -> Scope:
    """Return the scope that the importer attached to ``graph``.

    Raises:
        LookupError: The graph was not imported (a pass created it).
    """
    scope = graph.__dict__.get("scope")
    if not isinstance(scope, Scope):
        raise LookupError(
            f"graph {graph.name!r} did not come through coreai_onnx.passes.engine.surgeon"
        )
    return scope


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
    graphs = list(with_subgraphs(root))
    owned = {
        id(c) for graph in graphs if "scope" in graph.__dict__ for c in scope_of(graph).constants
    }
    mine = scope_of(root).constants
    for graph in graphs:
        for tensor in (*(t for node in graph.nodes for t in node.inputs), *graph.outputs):
            if isinstance(tensor, gs.Constant) and id(tensor) not in owned:
                owned.add(id(tensor))
                mine.append(tensor)


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
