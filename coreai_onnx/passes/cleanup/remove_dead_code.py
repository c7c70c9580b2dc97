"""Removes nodes and initializers that no output depends on."""
# ruff: noqa: ARG001 - every pass has the signature of a pass

from __future__ import annotations

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import detach
from coreai_onnx.passes.engine.graphs import attribute_graphs, context_of, with_subgraphs
from coreai_onnx.passes.engine.why import Why


def remove_dead_code(graph: gs.Graph, why: Why) -> int:
    """Nodes and constants that nothing reads → removed. Graph inputs and outputs remain.

    x ─Relu→ y (an output), x ─Exp→ z (read by nobody)     becomes     x ─Relu→ y
    """
    before = list(graph.nodes)
    graph.cleanup(recurse_subgraphs=False, recurse_functions=False)
    alive = {id(node) for node in graph.nodes}
    dead = [node for node in before if id(node) not in alive]
    inner = [held for node in dead for held in attribute_graphs(node)]
    detach([node for held in inner for g in with_subgraphs(held) for node in g.nodes])
    outputs = {id(tensor) for inner in with_subgraphs(graph) for tensor in inner.outputs}
    constants = context_of(graph).constants
    kept = [c for c in constants if c.outputs or id(c) in outputs]
    count = len(dead) + len(constants) - len(kept)
    constants[:] = kept
    return count
