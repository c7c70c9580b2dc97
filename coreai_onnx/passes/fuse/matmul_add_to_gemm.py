"""Replaces linear layers on matrices with Gemm."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import dtype_of, is_standard, made_by, shape_of
from coreai_onnx.passes.engine.why import Why

_DTYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.float64))


def matmul_add_to_gemm(graph: gs.Graph, why: Why) -> int:
    """MatMul of two matrices, plus a bias row → Gemm.

    x:[n, 8] ─MatMul(w)→ ─Add(b)→ y     becomes     Gemm(x, w, b) → y

    Only for rank 2: with a higher rank, a Gemm between two Reshapes is no faster in onnxruntime.
    """
    edit, count = Edit(graph), 0
    for node in graph.nodes:
        if not is_standard(node, "Add"):
            continue
        for tensor, bias in (node.inputs, node.inputs[::-1]):
            product = made_by(tensor, "MatMul")
            if product is None or not _fits(product, bias):
                continue
            if len(tensor.outputs) > 1 or edit.is_output(tensor) or not edit.holds(product):
                why("something else reads the product", node)
                continue
            edit.become(node, "Gemm", [*product.inputs, bias])
            edit.remove(product)
            count += 1
            break
    edit.finish()
    return count


def _fits(product: gs.Node, bias: gs.Tensor) -> bool:
    shapes = [shape_of(tensor) for tensor in product.inputs]
    row, dtype = shape_of(bias), dtype_of(product.inputs[0])
    if any(shape is None or len(shape) != 2 for shape in shapes) or row is None:
        return False
    columns = shapes[1][1]  # type: ignore[index]  # known, checked above
    same = dtype in _DTYPES and all(dtype_of(t) == dtype for t in (product.inputs[1], bias))
    return same and columns is not None and row in ((columns,), (1, columns))
