"""The common form of passes that remove nodes whose result equals one of their inputs."""

from __future__ import annotations

from collections.abc import Callable

import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import is_standard
from coreai_onnx.passes.engine.why import Why


def bypass_nodes(
    graph: gs.Graph,
    why: Why,
    ops: tuple[str, ...],
    is_noop: Callable[[gs.Node, Why], bool],
    source_of: Callable[[gs.Node], gs.Tensor | None] = lambda node: node.inputs[0],
) -> int:
    """Remove the no-op nodes of some standard ops.

    Args:
        graph: The graph.
        why: Collects near misses, among them nodes whose result is a graph output.
        ops: The ops.
        is_noop: Whether the result of a node equals its source.
        source_of: Returns the source of a no-op: its first input by default.

    Returns:
        The number of removed nodes.
    """
    edit, count = Edit(graph), 0
    for node in graph.nodes:
        if not is_standard(node, *ops) or not is_noop(node, why):
            continue
        if edit.bypass(node, source_of(node)):
            count += 1
        else:
            why("it names a graph output", node)
    edit.finish()
    return count
