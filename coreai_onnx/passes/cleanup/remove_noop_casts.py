"""Removes casts to the dtype that a tensor already has."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import bypass_nodes
from coreai_onnx.passes.engine.match import attribute_of, dtype_of
from coreai_onnx.passes.engine.why import Why


def remove_noop_casts(graph: gs.Graph, why: Why) -> int:
    """Cast or CastLike to the same dtype → nothing.

    x:f32 ─Cast(to=f32)→ y ─Relu→ z     becomes     x:f32 ─Relu→ z
    """
    return bypass_nodes(graph, why, ("Cast", "CastLike"), _is_noop)


def _is_noop(node: gs.Node, why: Why) -> bool:
    source, target = dtype_of(node.inputs[0]), _target(node)
    if source is None or target is None:
        return why("a dtype is not known", node)
    return source == target


def _target(node: gs.Node) -> np.dtype | None:
    if node.op == "CastLike":
        return dtype_of(node.inputs[1])
    to = attribute_of(node, "to", None)
    return ir.DataType(to).numpy() if isinstance(to, int) else None
