"""Folds shape values that are known although the shape is partly dynamic."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.analysis.shape_values import ShapeValueAnalysis
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import dtype_of, is_standard
from coreai_onnx.passes.engine.why import Why

_SOURCES = ("Shape", "Size")
_DERIVED = (
    "Gather", "Slice", "Concat", "Squeeze", "Unsqueeze", "Reshape", "Cast",
    "Add", "Sub", "Mul", "Div",
)  # fmt: skip


def fold_shapes(graph: gs.Graph, why: Why) -> int:
    """Shape arithmetic whose result is known → constant.

    x:[batch, 128, 64] ─Shape→ ─Gather(1)→ n     becomes     n = 128
    """
    edit, analysis, count = Edit(graph), ShapeValueAnalysis(), 0
    for node in graph.nodes:
        if not is_standard(node, *_SOURCES, *_DERIVED) or len(node.outputs) != 1:
            continue
        dims = analysis.of(node.outputs[0])
        if dims is None or not dims.is_known():
            if node.op in _SOURCES:
                why("the shape is not known in full", node)
            continue
        if edit.is_output(node.outputs[0]):
            why("a graph output keeps its node", node)
            continue
        edit.fix(node.outputs[0], dims.array(_dtype(node)))
        edit.remove(node)
        count += 1
    edit.finish()
    return count


def _dtype(node: gs.Node) -> np.dtype:
    """Return the dtype of a shape value: int64, or int32 after a cast."""
    while not is_standard(node, *_SOURCES):
        if is_standard(node, "Cast"):
            return np.dtype(np.int32 if node.attrs["to"] == 6 else np.int64)
        first = node.inputs[0]
        if isinstance(first, gs.Constant) or not first.inputs:
            return dtype_of(first) or np.dtype(np.int64)
        node = first.inputs[0]
    return np.dtype(np.int64)
