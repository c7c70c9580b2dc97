"""Stores quantized weights in the orientation in which they are used."""

from __future__ import annotations

from typing import Any

from coreai_onnx.passes.analysis.linear_quantization import dequantized_matrix
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import attribute_of, is_standard
from coreai_onnx.passes.engine.why import Why


def pretranspose_integers(graph: gs.Graph, why: Why) -> int:
    """Transpose of a dequantized matrix → a dequantized transpose of its integers.

    DQ(w:int8, axis=0) ─Transpose→ y     becomes     Transpose(w) ─DQ(axis=1)→ y

    ``pretranspose_weights`` then transposes the integers. onnxruntime finds products on integers
    only if nothing is between them and ``DequantizeLinear``.
    """
    edit, count = Edit(graph), 0
    for node in graph.nodes:
        weight = dequantized_matrix(node.inputs[0]) if is_standard(node, "Transpose") else None
        if weight is None or attribute_of(node, "perm", [1, 0]) != [1, 0]:
            continue
        if len(weight.steps.outputs) > 1:
            why("something else reads the integers", node)
            continue
        turned = edit.node("Transpose", node, [weight.steps], perm=[1, 0])
        turned.outputs[0].dtype = weight.steps.dtype
        turned.outputs[0].shape = list(reversed(weight.steps.shape))
        zeros = [] if weight.zero is None else [weight.zero]
        axis: dict[str, Any] = {} if weight.axis is None else {"axis": 1 - weight.axis}
        edit.become(node, "DequantizeLinear", [turned.outputs[0], weight.scale, *zeros], **axis)
        count += 1
    edit.finish()
    return count
