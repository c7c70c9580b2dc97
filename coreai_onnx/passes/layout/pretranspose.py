"""Transposes constant weights before the model runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from coreai_onnx.passes.analysis.linear_quantization import dequantized_matrix
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import attribute_of, is_standard
from coreai_onnx.passes.engine.why import Why


@rewrites("Transpose")
def pretranspose_weights(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Transpose of a matrix that nothing else reads → the matrix stored transposed.

    MatMul(x, Transpose(fc.weight))     becomes     MatMul(x, fc.weight.T)

    Otherwise onnxruntime would transpose at each start and hold both. A weight with another reader
    (a tied embedding) is left unchanged, so that it is stored once. The values are transposed when
    the model is written, one weight at a time.
    """
    done: dict[int, gs.Constant] = edit.once(dict)
    weight = node.inputs[0]
    if not isinstance(weight, gs.Constant) or len(weight.shape) != 2:
        return False
    if attribute_of(node, "perm", [1, 0]) != [1, 0] or np.dtype(weight.dtype).kind == "O":
        return False
    if edit.is_output(node.outputs[0]) or edit.is_output(weight):
        return why("a graph output keeps its node", node)
    if not all(is_standard(reader, "Transpose") for reader in weight.outputs):
        return why("something else reads the weight", node)
    # Transposes of one weight share one copy.
    if id(weight) not in done:
        shape = weight.shape[::-1]
        done[id(weight)] = edit.lazy(f"{weight.name}.T", np.transpose, [weight], shape)
    edit.replace(node.outputs[0], done[id(weight)])
    edit.remove(node)
    return True


@rewrites("Transpose")
def pretranspose_integers(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Transpose of a dequantized matrix → a dequantized transpose of its integers.

    DQ(w:int8, axis=0) ─Transpose→ y     becomes     Transpose(w) ─DQ(axis=1)→ y

    ``pretranspose_weights`` then transposes the integers. onnxruntime finds products on integers
    only if nothing is between them and ``DequantizeLinear``.
    """
    weight = dequantized_matrix(node.inputs[0])
    if weight is None or attribute_of(node, "perm", [1, 0]) != [1, 0]:
        return False
    if len(weight.steps.outputs) > 1:
        return why("something else reads the integers", node)
    dtype, shape = weight.steps.dtype, list(reversed(weight.steps.shape))
    turned = edit.add("Transpose", node, [weight.steps], dtype, shape, perm=[1, 0])
    zeros = [] if weight.zero is None else [weight.zero]
    axis: dict[str, Any] = {} if weight.axis is None else {"axis": 1 - weight.axis}
    edit.become(node, "DequantizeLinear", [turned, weight.scale, *zeros], **axis)
    return True
