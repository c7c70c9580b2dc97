"""Removes reshapes to the shape that a tensor already has."""

from __future__ import annotations

from coreai_onnx.passes.analysis.shape_values import ShapeValueAnalysis
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import bypass_nodes
from coreai_onnx.passes.engine.match import (
    Dim,
    attribute_of,
    same_known_shape,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why


def remove_noop_reshapes(graph: gs.Graph, why: Why) -> int:
    """Reshape, Flatten, Squeeze to the same shape → nothing; equal names mean equal dims.

    x:[batch, 8] ─Reshape([0, 8])→ y ─Relu→ z     becomes     x:[batch, 8] ─Relu→ z
    """
    analysis = ShapeValueAnalysis()
    return bypass_nodes(
        graph,
        why,
        ("Reshape", "Flatten", "Squeeze"),
        lambda node, why: _keeps_shape(node, analysis, why),
    )


def _keeps_shape(node: gs.Node, analysis: ShapeValueAnalysis, why: Why) -> bool:
    shape = shape_of(node.inputs[0])
    if shape is None:
        return why("the shape of the input is not known", node)
    if same_known_shape(node.inputs[0], node.outputs[0]):
        return True
    return node.op == "Reshape" and _keeps(node, shape, analysis)


def _keeps(node: gs.Node, shape: tuple[Dim, ...], analysis: ShapeValueAnalysis) -> bool:
    """Whether each dim is copied or equal, except that one may be inferred."""
    target = analysis.of(node.inputs[1])
    if target is None or len(target.items) != len(shape):
        return False
    copies = attribute_of(node, "allowzero", 0) == 0
    inferred = 0
    for dim, wanted in zip(shape, target.items, strict=True):
        if wanted is None:
            return False
        if wanted == -1:
            inferred += 1
        elif not (wanted == dim or (wanted == 0 and copies)):
            return False
    return inferred <= 1
