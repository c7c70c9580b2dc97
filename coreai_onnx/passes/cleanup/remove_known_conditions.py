"""Removes masks of positions that are true everywhere."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.analysis.affine import AffineTensor
from coreai_onnx.passes.analysis.affine_analysis import AffineAnalysis
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import is_standard, same_known_shape, shape_of
from coreai_onnx.passes.engine.why import Why


def remove_known_conditions(graph: gs.Graph, why: Why) -> int:
    """And with a mask of positions that is true everywhere → the other mask.

    And(causal, Equal(CumSum(i[1:] - i[:-1] != 1), …))     becomes     causal

    Models that support packed sequences write such checks. They are true if positions are
    consecutive.
    """
    edit, count, positions = Edit(graph), 0, AffineAnalysis()
    for node in graph.nodes:
        if not is_standard(node, "And"):
            continue
        for condition, other in (node.inputs, node.inputs[::-1]):
            known = positions.of(condition)
            if not isinstance(known, AffineTensor) or known.splat != 1:
                continue
            if _replaced(edit, node, other):
                count += 1
            else:
                why("the other mask may have to be repeated", node)
            break
    edit.finish()
    return count


def _replaced(edit: Edit, node: gs.Node, other: gs.Tensor) -> bool:
    """Replace a node with its other operand, expanded if it is smaller."""
    if same_known_shape(other, node.outputs[0]):
        return edit.bypass(node, other)
    shape = shape_of(node.outputs[0])
    # `Edit.size` reads a named dim from an input of the graph that declares it.
    named = {dim for tensor in edit.graph.inputs for dim in shape_of(tensor) or ()}
    if shape is None or shape_of(other) is None:
        return False
    if not all(isinstance(dim, int) or (dim is not None and dim in named) for dim in shape):
        return False  # before a node is created, which would be dead
    sizes = [size for dim in shape if (size := edit.size(dim, node)) is not None]
    vector = edit.node("Concat", node, sizes, axis=0).outputs[0]
    vector.dtype, vector.shape = np.dtype(np.int64), [len(shape)]
    edit.become(node, "Expand", [other, vector])
    return True
