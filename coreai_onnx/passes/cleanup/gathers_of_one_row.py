"""Replaces a Gather whose indices are all equal with the row."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.analysis.affine import AffineTensor
from coreai_onnx.passes.analysis.affine_analysis import AffineAnalysis
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, set_input
from coreai_onnx.passes.engine.match import attribute_of, constant_of, is_standard, same_known_shape
from coreai_onnx.passes.engine.why import Why

_LARGEST = 1 << 20
"""Tables with more elements are not read."""


def gathers_of_one_row(graph: gs.Graph, why: Why) -> int:
    """Gather with equal indices, added to a tensor of its shape → the row.

    Gather(table:[2, 64], zeros:[b, s]) → r:[b, s, 64], Add(x:[b, s, 64], r)
    becomes     Add(x, table[0]:[64])

    For example the token type embeddings of an encoder, whose token type ids default to zeros.
    """
    edit, count, positions = Edit(graph), 0, AffineAnalysis()
    for node in graph.nodes:
        if not is_standard(node, "Gather") or attribute_of(node, "axis", 0) != 0:
            continue
        table, known = node.inputs[0], positions.of(node.inputs[1])
        if not isinstance(table, gs.Constant) or not isinstance(known, AffineTensor):
            continue
        index, rows = known.splat, table.shape[0] if table.shape else 0
        if index is None or not node.inputs[1].shape or not -rows <= index < rows:
            continue
        if not all(_is_added(node.outputs[0], reader) for reader in node.outputs[0].outputs):
            why("it is not only added to tensors of its shape", node)
            continue
        values = constant_of(table, at_most=_LARGEST)
        if values is None or edit.is_output(node.outputs[0]):
            why("the table is large, or the rows are an output", node)
            continue
        row = edit.constant(f"{table.name}_{index}", np.ascontiguousarray(values[index]))
        for reader in list(node.outputs[0].outputs):
            set_input(reader, list(reader.inputs).index(node.outputs[0]), row)
        edit.remove(node)
        count += 1
    edit.finish()
    return count


def _is_added(rows: gs.Tensor, reader: gs.Node) -> bool:
    """Whether a node adds the rows to a tensor of the same shape, so that one row broadcasts."""
    if not is_standard(reader, "Add"):
        return False
    others = [tensor for tensor in reader.inputs if tensor is not rows]
    return len(others) == 1 and same_known_shape(others[0], rows)
