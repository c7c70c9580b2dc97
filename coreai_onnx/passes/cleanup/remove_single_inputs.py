"""Removes ops that combine several tensors if they have one input."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import is_standard
from coreai_onnx.passes.engine.why import Why


def remove_single_inputs(graph: gs.Graph, why: Why) -> int:
    """Concat, Sum, Mean, Max, Min of one tensor, Split into one → nothing.

    x ─Concat(axis=1)→ y ─Relu→ z     becomes     x ─Relu→ z
    """
    edit, count = Edit(graph), 0
    for node in graph.nodes:
        combines_one = is_standard(node, "Concat", "Sum", "Mean", "Max", "Min") and (
            len(node.inputs) == 1
        )
        splits_into_one = is_standard(node, "Split") and len(node.outputs) == 1
        if not (combines_one or splits_into_one):
            continue
        if edit.bypass(node, node.inputs[0]):
            count += 1
        else:
            why("it names a graph output", node)
    edit.finish()
    return count
