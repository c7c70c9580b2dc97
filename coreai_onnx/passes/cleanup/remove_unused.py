"""Removes what no result needs: nodes, functions, and Concat of one input."""
# ruff: noqa: ARG001 - every pass has the signature of a pass

from __future__ import annotations

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, detach, rewrites
from coreai_onnx.passes.engine.graphs import (
    attribute_graphs,
    called_functions,
    context_of,
    with_subgraphs,
)
from coreai_onnx.passes.engine.why import Why


def remove_dead_code(graph: gs.Graph, why: Why) -> int:
    """Nodes and constants that nothing reads → removed. Graph inputs and outputs remain.

    x ─Relu→ y (an output), x ─Exp→ z (read by nobody)     becomes     x ─Relu→ y
    """
    before = list(graph.nodes)
    # The runner calls the pass for each subgraph and function.
    graph.cleanup(recurse_subgraphs=False, recurse_functions=False)
    alive = {id(node) for node in graph.nodes}
    dead = [node for node in before if id(node) not in alive]
    inner = [held for node in dead for held in attribute_graphs(node)]
    # Subgraphs of dead nodes read outer tensors, and would count as readers for as long as the
    # tensors live.
    detach([node for held in inner for g in with_subgraphs(held) for node in g.nodes])
    outputs = {id(tensor) for inner in with_subgraphs(graph) for tensor in inner.outputs}
    constants = context_of(graph).constants
    kept = [c for c in constants if c.outputs or id(c) in outputs]
    count = len(dead) + len(constants) - len(kept)
    constants[:] = kept
    return count


def remove_unused_functions(graph: gs.Graph, why: Why) -> int:
    """Function that neither the main graph nor a used function calls → removed.

    functions {rms_norm, rope}, nodes {rms_norm}     becomes     functions {rms_norm}
    """
    if context_of(graph).kind != "main":
        return 0
    kept = called_functions(graph, graph.functions)
    count = len(graph.functions) - len(kept)
    graph.functions = kept
    return count


_COMBINING = ("Concat", "Sum", "Mean", "Max", "Min")


@rewrites(*_COMBINING, "Split")
def remove_single_inputs(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Concat, Sum, Mean, Max, Min of one tensor, Split into one → nothing.

    x ─Concat(axis=1)→ y ─Relu→ z     becomes     x ─Relu→ z
    """
    joined = node.outputs if node.op == "Split" else node.inputs
    return len(joined) == 1 and edit.bypass_or(why, node, node.inputs[0])
