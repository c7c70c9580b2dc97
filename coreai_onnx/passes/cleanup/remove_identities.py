"""Removes nodes that return their input."""

from __future__ import annotations

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import bypass_nodes
from coreai_onnx.passes.engine.match import constant_of, input_of
from coreai_onnx.passes.engine.why import Why


def remove_identities(graph: gs.Graph, why: Why) -> int:
    """Identity, and Dropout in inference mode → nothing.

    a ─Identity→ b ─Relu→ c     becomes     a ─Relu→ c
    """
    return bypass_nodes(graph, why, ("Identity", "Dropout"), _is_noop)


def _is_noop(node: gs.Node, why: Why) -> bool:
    if node.op == "Identity" or _is_inference(node):
        return True
    return why("Dropout may be in training mode, or its mask is used", node)


def _is_inference(node: gs.Node) -> bool:
    mode = input_of(node, 2)
    if mode is not None:
        training = constant_of(mode, at_most=1)
        if training is None or bool(training.any()):
            return False
    return all(not mask.outputs for mask in node.outputs[1:]) and len(node.outputs) == 1
