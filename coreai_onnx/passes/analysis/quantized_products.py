"""Matches products whose second factor is made from a constant: quantized, or widened."""

from __future__ import annotations

from typing import Any

import numpy as np

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.match import attribute_of, dtype_of, input_of, made_by, shape_of

_FLOAT32 = np.dtype(np.float32)


def second_factor(node: gs.Node) -> tuple[gs.Tensor, int]:
    """Return the second factor before its Transpose, and its axis of input features."""
    axis = int(node.op == "Gemm" and attribute_of(node, "transB", 0) == 1)
    return before_transposes(node.inputs[1], axis)


def before_transposes(tensor: gs.Tensor, axis: int) -> tuple[gs.Tensor, int]:
    """Return a matrix before its Transposes, and where ``axis`` is there."""
    while (turn := made_by(tensor, "Transpose")) is not None:
        if attribute_of(turn, "perm", [1, 0]) != [1, 0]:
            break
        tensor, axis = turn.inputs[0], 1 - axis
    return tensor, axis


def obstacle(node: gs.Node, outputs: int, dtype: np.dtype[Any] = _FLOAT32) -> str:
    """Return why the op is not equivalent to a product with its weight; empty if it is."""
    dims = shape_of(node.inputs[0])
    if dtype_of(node.inputs[0]) != dtype:
        return f"the dtype is not {dtype.name}"
    if dims is None or len(dims) < 2:
        return "the first factor is not known to be a matrix"
    if node.op == "MatMul":
        return ""
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    if any(attribute_of(node, name, value) != value for name, value in plain.items()):
        return "the product is scaled or transposed"
    bias = input_of(node, 2)
    return "" if bias is None or shape_of(bias) == (outputs,) else "the bias is no row"
