"""Removes transposes that keep the order of the axes."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import attribute_of, is_standard, shape_of
from coreai_onnx.passes.engine.why import Why


def remove_noop_transposes(graph: gs.Graph, why: Why) -> int:
    """Transpose with the identity permutation → nothing.

    x ─Transpose(perm=[0, 1, 2])→ y ─Relu→ z     becomes     x ─Relu→ z
    """
    edit, count = Edit(graph), 0
    for node in graph.nodes:
        if not is_standard(node, "Transpose"):
            continue
        perm = attribute_of(node, "perm", None)
        if perm is None:  # the default reverses the axes
            shape = shape_of(node.inputs[0])
            if shape is None:
                why("without perm, the rank must be known", node)
                continue
            perm = list(range(len(shape)))[::-1]
        if not isinstance(perm, list):
            why("perm refers to an attribute of the function", node)
            continue
        if perm != list(range(len(perm))):
            continue
        if edit.bypass(node, node.inputs[0]):
            count += 1
        else:
            why("it names a graph output", node)
    edit.finish()
    return count
