"""Which values of a lowered graph are results of which nodes of the exported program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx_ir as ir
from torch import fx


def value_origins(
    graph: ir.Graph, lowered: Mapping[fx.Node, Any], returned: Mapping[str, str]
) -> dict[str, str]:
    """Return the result of the exported program that each value of a graph is.

    Args:
        graph: The main graph.
        lowered: What each FX node became.
        returned: FX node by output, also for outputs that are copies.

    Returns:
        Value name to FX node, ``linear_3``, or to node and position, ``split:1``.
    """
    origins: dict[str, str] = {}
    for node, result in lowered.items():
        for origin, value in _results(node.name, result):
            if value.name and _is_computed(graph, value):
                # Nodes that return their argument share its value: the node that named it comes
                # first.
                same = value.name == origin
                origins[value.name] = origin if same else origins.get(value.name, origin)
    return dict(returned) | origins


def nested_origins(
    modules: Iterable[tuple[str, Any]],
    nested: Iterable[tuple[fx.GraphModule, ir.Graph, Mapping[fx.Node, Any]]],
) -> dict[str, str]:
    """Return the result that each value of a graph inside of a node is.

    Args:
        modules: The graph modules of the program by path.
        nested: What the FX nodes of each graph module became, with the graph.

    Returns:
        Value name to graph module and FX node, ``while_loop_body_graph_0/mul``. Values of graphs
        that the program does not have, such as those of decompositions, are left out, and those of
        graphs that several nodes call.
    """
    paths = {id(module): path for path, module in modules}
    lowerings = list(nested)
    times = Counter(id(module) for module, _, _ in lowerings)
    origins_inside: dict[str, str] = {}
    for module, graph, lowered in lowerings:
        path = paths.get(id(module), "")
        if path and times[id(module)] == 1:
            origins = value_origins(graph, lowered, {})
            origins_inside |= {name: f"{path}/{origin}" for name, origin in origins.items()}
    return origins_inside


def _results(name: str, result: Any) -> Iterator[tuple[str, ir.Value]]:
    if isinstance(result, ir.Value):
        yield name, result
    if isinstance(result, list | tuple):
        entries = ((f"{name}:{i}", entry) for i, entry in enumerate(result))
        yield from ((origin, entry) for origin, entry in entries if isinstance(entry, ir.Value))


def _is_computed(graph: ir.Graph, value: ir.Value) -> bool:
    """Whether a value is an input or a result of a node, and not a weight or a constant."""
    producer = value.producer()
    return value.is_graph_input() if producer is None else producer.graph is graph
