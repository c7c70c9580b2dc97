"""Defects of onnxruntime that programs are written around."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.inventory import all_nodes
from coreai_onnx.model.standard.op_schemas import ONNX_DOMAINS

LOWEST = float(np.finfo(np.float32).min)
"""The number in a mask of float32 that onnxruntime's Attention treats as -inf since 1.29: it gives
zeros for a row of it. torch does so for -inf only."""
LOWEST_SCORE = float(np.nextafter(np.float32(LOWEST), np.float32(0)))
"""The next number, which gives the same scores and hides nothing."""
FIRST_OPSET_WITHOUT_RANDOM = 22
"""ONNX revised RandomUniform and RandomNormal in opset 22; onnxruntime registers kernels for their
first revision only (seen in 1.31)."""

_CRASHES = "MatmulTransposeFusion"


def disabled_optimizers(model: ir.Model | None) -> list[str]:
    """Return the names of the optimizers of onnxruntime that crash on a model.

    ``MatmulTransposeFusion`` swaps a Transpose and the Cast after it, including a Cast that
    onnxruntime itself inserts for float16. It loses the edge to the MatMul that reads the result if
    the Transpose moves the first axis and the operands have different ranks (seen in 1.21 to 1.31).
    The pass ``transposes_after_products`` leaves no such product inside a graph.

    Args:
        model: The model; None if it was not read.
    """
    # An unread model may have such a product, and a lost fusion costs less than a crash.
    return [_CRASHES] if model is None or any(map(_may_crash, _transposes(model))) else []


def _transposes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the Transpose nodes whose first output axis is input axis 1."""
    for node in all_nodes(model):
        if node.op_type == "Transpose" and node.domain in ONNX_DOMAINS:
            perm = node.attributes.get("perm")
            if perm is not None and not perm.is_ref() and [*perm.as_ints()][:1] == [1]:
                yield node


def _may_crash(transpose: ir.Node) -> bool:
    """Whether a product of another rank, or a function, reads it directly or through a Cast."""
    result = transpose.outputs[0]
    # The Cast that onnxruntime inserts for float16 is in no file, and an undeclared dtype may be
    # float16.
    if result.dtype in (None, ir.DataType.FLOAT16) and any(map(_mixed, result.consumers())):
        return True
    casts = [node for node in result.consumers() if node.op_type == "Cast"]
    return any(_mixed(reader) for cast in casts for reader in cast.outputs[0].consumers())


def _mixed(reader: ir.Node) -> bool:
    """Whether a node is a product of operands of different or unknown ranks, or a function call."""
    if reader.domain not in ONNX_DOMAINS:
        return True
    shapes = [None if x is None else x.shape for x in reader.inputs]
    ranks = {None if shape is None else len(shape) for shape in shapes}
    return reader.op_type == "MatMul" and (None in ranks or len(ranks) > 1)
