"""Replaces residual norms with onnxruntime's contrib ops."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import (
    CONTRIB_DOMAIN,
    attribute_of,
    composite,
    dtype_of,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why

_OPS = {
    "skip_rms_norm": "SkipSimplifiedLayerNormalization",
    "skip_layer_norm": "SkipLayerNormalization",
}
_DTYPES = (np.dtype(np.float32), np.dtype(np.float16))


def contrib_skip_norms(graph: gs.Graph, why: Why) -> int:
    """skip_rms_norm → SkipSimplifiedLayerNormalization, skip_layer_norm → SkipLayerNormalization.

    ai.coreai::skip_rms_norm(x, skip, scale) → y, sum
    becomes     com.microsoft::SkipSimplifiedLayerNormalization(x, skip, scale) → y, , , sum

    Only if the file must run on an onnxruntime before 1.30: from then on the ops take two to
    four times as long as the bodies.
    """
    edit, count = Edit(graph), 0
    for node in graph.nodes:
        name = node.op.partition(".")[0]
        if composite(node, *_OPS) is None:
            continue
        reason = _obstacle(node)
        if reason:
            why(reason, node)
            continue
        outputs = list(node.outputs)
        edit.become(
            node,
            _OPS[name],
            list(node.inputs),
            domain=CONTRIB_DOMAIN,
            epsilon=node.attrs["eps"],
        )
        if len(outputs) > 1:
            # Between them are the statistics, which only training reads.
            places = [outputs[0], gs.Variable.empty(), gs.Variable.empty(), outputs[1]]
            # Methods of list, as in `Edit`: graph-surgeon's own would search for nodes by value.
            list.clear(node.outputs)
            for tensor in places:
                list.clear(tensor.inputs)
                node.outputs.append(tensor)
        count += 1
    edit.finish()
    return count


def _obstacle(node: gs.Node) -> str:
    """Return why onnxruntime's op is not equivalent; empty if it is."""
    shape, dtype = shape_of(node.inputs[0]), dtype_of(node.inputs[0])
    if shape is None or len(shape) not in (2, 3) or shape != shape_of(node.inputs[1]):
        return "the terms are not known to have two or three dims"
    if attribute_of(node, "axes", None) != [-1] or len(node.inputs) < 3:
        return "it is not scaled along the last axis alone"
    for tensor in node.inputs[2:]:
        if dtype not in _DTYPES or dtype_of(tensor) != dtype or shape_of(tensor) != shape[-1:]:
            return "scale or bias has another dtype or size"
    return ""
