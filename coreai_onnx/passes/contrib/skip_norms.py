"""Replaces residual norms with onnxruntime's contrib ops."""

from __future__ import annotations

import numpy as np

from coreai_onnx.model.inventory import CONTRIB_DOMAIN
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import attribute_of, dtype_of, shape_of
from coreai_onnx.passes.engine.why import Why

_OPS = {
    "skip_rms_norm": "SkipSimplifiedLayerNormalization",
    "skip_layer_norm": "SkipLayerNormalization",
}
_DTYPES = (np.dtype(np.float32), np.dtype(np.float16))


@rewrites(composites=tuple(_OPS))
def contrib_skip_norms(edit: Edit, node: gs.Node, why: Why) -> bool:
    """skip_rms_norm → SkipSimplifiedLayerNormalization, skip_layer_norm → SkipLayerNormalization.

    ai.coreai::skip_rms_norm(x, skip, scale) → y, sum
    becomes     com.microsoft::SkipSimplifiedLayerNormalization(x, skip, scale) → y, , , sum

    Only if the file must run on an onnxruntime before 1.30: from then on the ops take two to
    four times as long as the bodies.
    """
    shape, dtype = shape_of(node.inputs[0]), dtype_of(node.inputs[0])
    if shape is None or len(shape) not in (2, 3) or shape != shape_of(node.inputs[1]):
        return why("the terms are not known to have two or three dims", node)
    if attribute_of(node, "axes", None) != [-1] or len(node.inputs) < 3:
        return why("the norm must be of the last axis, with a scale", node)
    for tensor in node.inputs[2:]:
        if dtype not in _DTYPES or dtype_of(tensor) != dtype or shape_of(tensor) != shape[-1:]:
            return why("scale and bias must have the dtype and the last dim of the input", node)
    outputs = list(node.outputs)
    op, inputs = _OPS[node.op.partition(".")[0]], list(node.inputs)
    edit.become(node, op, inputs, domain=CONTRIB_DOMAIN, epsilon=node.attrs["eps"])
    if len(outputs) > 1:
        # Between them are the statistics, which only training reads.
        places = [outputs[0], gs.Variable.empty(), gs.Variable.empty(), outputs[1]]
        # Methods of list, as in `Edit`: graph-surgeon's own would search for nodes by value.
        list.clear(node.outputs)
        for tensor in places:
            list.clear(tensor.inputs)
            node.outputs.append(tensor)
    return True
