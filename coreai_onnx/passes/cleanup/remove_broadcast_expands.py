"""Removes Expands before ops that broadcast anyway."""

from __future__ import annotations

from collections.abc import Sequence

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import set_input
from coreai_onnx.passes.engine.match import Dim, is_standard, made_by, shape_of
from coreai_onnx.passes.engine.why import Why

_BROADCASTING = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "Equal", "Greater", "Less",
    "GreaterOrEqual", "LessOrEqual", "Where", "Expand",
)  # fmt: skip


def remove_broadcast_expands(graph: gs.Graph, why: Why) -> int:
    """Expand before an op that broadcasts to the same shape without it → nothing.

    a:[1, s] ─Expand→ [b, s], Add(a, c:[b, s])     becomes     Add(a:[1, s], c:[b, s])
    """
    count = 0
    for node in graph.nodes:
        if not is_standard(node, *_BROADCASTING):
            continue
        result = shape_of(node.outputs[0])
        last = 1 if node.op == "Expand" else len(node.inputs)
        for index in range(last):
            expand = made_by(node.inputs[index], "Expand")
            if expand is None:
                continue
            shapes = [shape_of(tensor) for tensor in node.inputs[:last]]
            shapes[index] = shape_of(expand.inputs[0])
            if node.op == "Expand":
                shapes.append(_target(node))
            if result is None or _broadcast(shapes) != result:
                why("the shape may be another one without it", node)
                continue
            set_input(node, index, expand.inputs[0])
            count += 1
    return count


def _target(node: gs.Node) -> tuple[Dim, ...] | None:
    """Return the target of an Expand, if it is known to be the shape of its result."""
    from coreai_onnx.passes.analysis.shape_values import ShapeValueAnalysis

    dims = ShapeValueAnalysis().of(node.inputs[1])
    return None if dims is None else dims.items


def _broadcast(shapes: Sequence[tuple[Dim, ...] | None]) -> tuple[Dim, ...] | None:
    """Return the shape that shapes broadcast to; equal names are equal dims."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    rank = max(len(shape) for shape in known)
    result: list[Dim] = []
    for axis in range(rank):
        dims = {shape[axis - rank + len(shape)] for shape in known if axis >= rank - len(shape)}
        wide = dims - {1}
        if None in wide or len(wide) > 1:
            return None
        result.append(wide.pop() if wide else 1)
    return tuple(result)
