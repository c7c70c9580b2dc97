"""Rotary embeddings as onnxruntime's own op."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from coreai_onnx.passes.edit import Edit
from coreai_onnx.passes.facts import Dim, attribute_of, dtype_of, shape_of
from coreai_onnx.passes.match import CONTRIB_DOMAIN, composite, made_by
from coreai_onnx.passes.tensor_table import TensorTable
from coreai_onnx.passes.why import Why


def contrib_rope(graph: gs.Graph, why: Why) -> int:
    """rope with the same angles in every row of the batch → RotaryEmbedding.

    ai.coreai::rope(x, Expand(cos:[1, 1, s, f]), Expand(sin))
    becomes     com.microsoft::RotaryEmbedding(x, [0], cos:[s, f], sin:[s, f])

    Angles are read from the first position on, without one copy per row.
    """
    edit, count = Edit(graph), 0
    tables = Tables(edit)
    for node in graph.nodes:
        if composite(node, "rope") is None:
            continue
        pair = tables.of(node)
        if pair is None:
            why("each row of the batch has angles of its own", node)
            continue
        start = edit.constant(f"{node.outputs[0].name}_start", np.zeros(1, np.int64))
        inputs = [node.inputs[0], start, *pair]
        edit.become(node, "RotaryEmbedding", inputs, domain=CONTRIB_DOMAIN)
        count += 1
    edit.finish()
    return count


class Tables:
    """Cosines and sines of all rows of a batch as matrices, each made once."""

    def __init__(self, edit: Edit) -> None:
        """Make nodes by ``edit``."""
        self._edit = edit
        self._known: TensorTable[gs.Tensor] = TensorTable()

    def of(self, node: gs.Node) -> tuple[gs.Tensor, gs.Tensor] | None:
        """Return the tables of a rope, ``[length, lanes / 2]``; None if rows differ."""
        if len(node.inputs) != 3 or any(tensor.is_empty() for tensor in node.inputs):
            return None
        if attribute_of(node, "dims", 0) != 0 or attribute_of(node, "interleaved", 0) != 0:
            return None
        shape, (cos, sin) = shape_of(node.inputs[0]), map(self._row, node.inputs[1:])
        if shape is None or len(shape) != 4 or cos is None or sin is None:
            return None
        if {dtype_of(t) for t in (cos, sin)} != {dtype_of(node.inputs[0])}:
            return None
        return self._matrix(cos, node), self._matrix(sin, node)

    def _row(self, table: gs.Tensor) -> gs.Tensor | None:
        """Return the angles of one row of the batch."""
        expand = made_by(table, "Expand")
        for tensor in (table, *([] if expand is None else [expand.inputs[0]])):
            shape = shape_of(tensor)
            if shape is not None and len(shape) == 4 and shape[:2] == (1, 1):
                return tensor
        return None

    def _matrix(self, row: gs.Tensor, like: gs.Node) -> gs.Tensor:
        if row not in self._known:
            axes = self._edit.constant(f"{row.name}_axes", np.array([0, 1], np.int64))
            matrix = self._edit.node("Squeeze", like, [row, axes]).outputs[0]
            shape: list[Dim] = list(row.shape[2:])
            matrix.dtype, matrix.shape = row.dtype, shape
            self._known[row] = matrix
        return self._known[row]
