"""Removes transposes that keep the order of the axes."""

from __future__ import annotations

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import bypass_nodes
from coreai_onnx.passes.engine.match import attribute_of, shape_of
from coreai_onnx.passes.engine.why import Why


def remove_noop_transposes(graph: gs.Graph, why: Why) -> int:
    """Transpose with the identity permutation → nothing.

    x ─Transpose(perm=[0, 1, 2])→ y ─Relu→ z     becomes     x ─Relu→ z
    """
    return bypass_nodes(graph, why, ("Transpose",), _keeps_order)


def _keeps_order(node: gs.Node, why: Why) -> bool:
    perm = attribute_of(node, "perm", None)
    if perm is None:  # the default reverses the axes
        shape = shape_of(node.inputs[0])
        if shape is None:
            return why("without perm, the rank must be known", node)
        return len(shape) < 2
    if not isinstance(perm, list):
        return why("perm refers to an attribute of the function", node)
    return perm == list(range(len(perm)))
