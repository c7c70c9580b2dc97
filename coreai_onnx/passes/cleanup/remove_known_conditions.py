"""Removes masks of positions that are true everywhere."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.analysis.affine import AffineTensor
from coreai_onnx.passes.analysis.affine_analysis import AffineAnalysis
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import same_known_shape, shape_of
from coreai_onnx.passes.engine.why import Why


@rewrites("And")
def remove_known_conditions(edit: Edit, node: gs.Node, why: Why) -> bool:
    """And with a mask of positions that is true everywhere → the other mask.

    And(causal, Equal(CumSum(i[1:] - i[:-1] != 1), …))     becomes     causal

    Models that support packed sequences write such checks. They are true if positions are
    consecutive.
    """
    positions = edit.once(AffineAnalysis)
    for condition, other in (node.inputs, node.inputs[::-1]):
        known = positions.of(condition)
        if isinstance(known, AffineTensor) and known.splat == 1:
            replaced = _replaced(edit, node, other)
            return replaced or why("the other mask may have to be repeated", node)
    return False


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
