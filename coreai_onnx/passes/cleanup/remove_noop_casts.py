"""Removes casts to the dtype that a tensor already has."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import onnx_ir as ir

from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import attribute_of, dtype_of, is_standard
from coreai_onnx.passes.engine.why import Why


def remove_noop_casts(graph: gs.Graph, why: Why) -> int:
    """Cast or CastLike to the same dtype → nothing.

    x:f32 ─Cast(to=f32)→ y ─Relu→ z     becomes     x:f32 ─Relu→ z
    """
    edit, count = Edit(graph), 0
    for node in graph.nodes:
        if not is_standard(node, "Cast", "CastLike"):
            continue
        source, target = dtype_of(node.inputs[0]), _target(node)
        if source is None or target is None:
            why("a dtype is not known", node)
            continue
        if source != target:
            continue
        if edit.bypass(node, node.inputs[0]):
            count += 1
        else:
            why("it names a graph output", node)
    edit.finish()
    return count


def _target(node: gs.Node) -> np.dtype | None:
    if node.op == "CastLike":
        return dtype_of(node.inputs[1])
    to = attribute_of(node, "to", None)
    return ir.DataType(to).numpy() if isinstance(to, int) else None
