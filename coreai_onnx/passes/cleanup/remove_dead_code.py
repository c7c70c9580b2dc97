"""Removes nodes and initializers that no output depends on."""
# ruff: noqa: ARG001 - every pass has the signature of a pass

from __future__ import annotations

from collections.abc import Iterable

import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.edit import detach
from coreai_onnx.passes.engine.scope import attribute_graphs, scope_of, with_subgraphs
from coreai_onnx.passes.engine.why import Why


def remove_dead_code(graph: gs.Graph, why: Why) -> int:
    """Nodes and constants that nothing reads → removed. Graph inputs and outputs remain.

    x ─Relu→ y (an output), x ─Exp→ z (read by nobody)     becomes     x ─Relu→ y
    """
    alive = _alive(graph)
    dead = [node for node in graph.nodes if id(node) not in alive]
    if dead:
        graph.nodes = [node for node in graph.nodes if id(node) in alive]
        inner = [
            g for node in dead for held in attribute_graphs(node) for g in with_subgraphs(held)
        ]
        detach([*dead, *(node for g in inner for node in g.nodes)])
    outputs = {id(tensor) for inner in with_subgraphs(graph) for tensor in inner.outputs}
    constants = scope_of(graph).constants
    kept = [c for c in constants if c.outputs or id(c) in outputs]
    count = len(dead) + len(constants) - len(kept)
    constants[:] = kept
    return count


def _alive(graph: gs.Graph) -> set[int]:
    """Return the ids of the nodes that an output depends on."""
    local = {id(node) for node in graph.nodes}
    waiting = [maker for tensor in graph.outputs for maker in tensor.inputs if id(maker) in local]
    alive = {id(node) for node in waiting}
    while waiting:
        for tensor in _reads(waiting.pop()):
            for maker in tensor.inputs:
                if id(maker) in local and id(maker) not in alive:
                    alive.add(id(maker))
                    waiting.append(maker)
    return alive


def _reads(node: gs.Node) -> Iterable[gs.Tensor]:
    """Yield the tensors that a node reads, also inside its subgraphs."""
    yield from node.inputs
    for held in attribute_graphs(node):
        for graph in with_subgraphs(held):
            for inner in graph.nodes:
                yield from inner.inputs
            yield from graph.outputs
