"""Stores weights in the orientation in which they are used."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.constants import lazy_constant
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.graphs import context_of
from coreai_onnx.passes.engine.match import attribute_of, is_standard
from coreai_onnx.passes.engine.why import Why


def pretranspose_weights(graph: gs.Graph, why: Why) -> int:
    """Transpose of a matrix that nothing else reads → the matrix stored transposed.

    MatMul(x, Transpose(fc.weight))     becomes     MatMul(x, fc.weight.T)

    Otherwise onnxruntime would transpose at each start and hold both. A weight with another reader
    (a tied embedding) is left unchanged, so that it is stored once. The values are transposed when
    the model is written, one weight at a time.
    """
    edit, count = Edit(graph), 0
    done: dict[int, gs.Constant] = {}
    for node in graph.nodes:
        weight = node.inputs[0] if is_standard(node, "Transpose") else None
        if not isinstance(weight, gs.Constant) or len(weight.shape) != 2:
            continue
        if attribute_of(node, "perm", [1, 0]) != [1, 0] or np.dtype(weight.dtype).kind == "O":
            continue
        if edit.is_output(node.outputs[0]) or edit.is_output(weight):
            why("a graph output keeps its node", node)
            continue
        readers = [other for other in weight.outputs if not is_standard(other, "Transpose")]
        if readers:
            why("something else reads the weight", node)
            continue
        if id(weight) not in done:
            name = context_of(graph).names.claim(f"{weight.name}.T")
            rows, columns = weight.shape
            done[id(weight)] = lazy_constant(name, np.transpose, [weight], [columns, rows])
        edit.replace(node.outputs[0], done[id(weight)])
        edit.remove(node)
        count += 1
    edit.finish()
    return count
