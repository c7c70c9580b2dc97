"""Removes Expands and Tiles that repeat nothing."""

from __future__ import annotations

from coreai_onnx.passes.analysis.shape_values import ShapeValue, ShapeValueAnalysis
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import bypass_nodes
from coreai_onnx.passes.engine.match import Dim, made_by, same_known_shape, shape_of
from coreai_onnx.passes.engine.why import Why


def remove_noop_expands(graph: gs.Graph, why: Why) -> int:
    """Expand to the shape that the tensor already has, Tile with repeats of 1 → nothing.

    x:[batch, 8] ─Expand([1, 8])→ y ─Relu→ z     becomes     x:[batch, 8] ─Relu→ z
    """
    analysis = ShapeValueAnalysis()
    return bypass_nodes(
        graph, why, ("Expand", "Tile"), lambda node, why: _repeats_nothing(node, analysis, why)
    )


def _repeats_nothing(node: gs.Node, analysis: ShapeValueAnalysis, why: Why) -> bool:
    if same_known_shape(node.inputs[0], node.outputs[0]):
        return True
    target = analysis.of(node.inputs[1])
    if target is None:
        return why("the target shape is not known", node)
    return _fills(node.inputs[0], target) if node.op == "Expand" else _once(target)


def _fills(tensor: gs.Tensor, target: ShapeValue) -> bool:
    """Whether each target dim is 1 or equals the tensor's dim, aligned at the end."""
    shape = _shape_before_casts(tensor)
    if shape is None or len(target.items) > len(shape):
        return False
    tail = shape[len(shape) - len(target.items) :]
    return all(
        want == 1 or (want == dim and dim is not None)
        for want, dim in zip(target.items, tail, strict=True)
    )


def _shape_before_casts(tensor: gs.Tensor) -> tuple[Dim, ...] | None:
    """Return the shape of a tensor; function bodies declare those of arguments only."""
    cast = made_by(tensor, "Cast")
    while shape_of(tensor) is None and cast is not None:
        tensor = cast.inputs[0]
        cast = made_by(tensor, "Cast")
    return shape_of(tensor)


def _once(repeats: ShapeValue) -> bool:
    return all(item == 1 for item in repeats.items)
