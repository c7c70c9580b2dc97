"""Removes ops that combine several tensors if they have one input."""

from __future__ import annotations

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import bypass_nodes
from coreai_onnx.passes.engine.why import Why

_COMBINING = ("Concat", "Sum", "Mean", "Max", "Min")


def remove_single_inputs(graph: gs.Graph, why: Why) -> int:
    """Concat, Sum, Mean, Max, Min of one tensor, Split into one → nothing.

    x ─Concat(axis=1)→ y ─Relu→ z     becomes     x ─Relu→ z
    """
    return bypass_nodes(graph, why, (*_COMBINING, "Split"), _is_single)


def _is_single(node: gs.Node, _: Why) -> bool:
    return len(node.outputs if node.op == "Split" else node.inputs) == 1
