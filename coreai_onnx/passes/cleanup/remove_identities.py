"""Removes nodes that return their input."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import constant_of, input_of, is_standard
from coreai_onnx.passes.engine.why import Why


def remove_identities(graph: gs.Graph, why: Why) -> int:
    """Identity, and Dropout in inference mode → nothing.

    a ─Identity→ b ─Relu→ c     becomes     a ─Relu→ c
    """
    edit, count = Edit(graph), 0
    for node in graph.nodes:
        if not is_standard(node, "Identity", "Dropout"):
            continue
        if node.op == "Dropout" and not _is_inference(node):
            why("Dropout may be in training mode, or its mask is used", node)
            continue
        if edit.bypass(node, node.inputs[0]):
            count += 1
        else:
            why("it names a graph output", node)
    edit.finish()
    return count


def _is_inference(node: gs.Node) -> bool:
    mode = input_of(node, 2)
    if mode is not None:
        training = constant_of(mode, at_most=1)
        if training is None or bool(training.any()):
            return False
    return all(not mask.outputs for mask in node.outputs[1:]) and len(node.outputs) == 1
