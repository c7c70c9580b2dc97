"""Removes an Expand whose readers broadcast."""

from __future__ import annotations

from collections.abc import Sequence

from coreai_onnx.passes.cleanup.remove_noops import remove_noop_expands
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import model_bodies
from coreai_onnx.passes.engine.edit import Edit, rewrites, set_input
from coreai_onnx.passes.engine.match import Dim, made_by, shape_of
from coreai_onnx.passes.engine.why import Why

_BROADCASTING = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "Equal", "Greater", "Less",
    "GreaterOrEqual", "LessOrEqual", "Where", "Expand",
)  # fmt: skip


@rewrites(*_BROADCASTING)
def remove_broadcast_expands(_: Edit, node: gs.Node, why: Why) -> int:
    """Expand before an op that broadcasts to the same shape without it → nothing.

    a:[1, s] ─Expand→ [b, s], Add(a, c:[b, s])     becomes     Add(a:[1, s], c:[b, s])
    """
    result, count = shape_of(node.outputs[0]), 0
    # The second input of an Expand is its target, which does not broadcast.
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
        # Two names may be different sizes at run time, one of them 1.
        if None in wide or len(wide) > 1:
            return None
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def remove_expands_in_functions(graph: gs.Graph, why: Why) -> int:
    """Expand of an argument that has the target shape at every call → nothing.

    f(q, mask) = Attention(q, Expand(mask, [T, S])), every call's mask is [batch, 1, T, S]
    becomes     f(q, mask) = Attention(q, mask)
    """
    bodies = model_bodies(graph)
    if not isinstance(graph, gs.Function) or bodies is None:
        return 0
    shapes = [_shared(dims) for dims in bodies.arguments(graph)]
    known = [(tensor, tensor.shape) for tensor in graph.inputs]
    try:
        for tensor, shape in zip(graph.inputs, shapes, strict=True):
            tensor.shape = shape
        return remove_noop_expands(graph, why)
    finally:  # a body declares no shapes
        for tensor, shape in known:
            tensor.shape = shape


def _shared(tensors: list[gs.Tensor]) -> list[str | None] | None:
    """Return one shape for the tensors of all calls; equal names mean equal dims at each call.

    The dims ``batch`` and ``texts`` of two calls become ``batch|texts``.
    """
    shapes = [shape_of(tensor) for tensor in tensors]
    found = [shape for shape in shapes if shape is not None]
    if not found or len(found) < len(shapes) or len({len(shape) for shape in found}) > 1:
        return None
    return [_name(dims) for dims in zip(*found, strict=True)]


def _name(dims: tuple[Dim, ...]) -> str | None:
    """Return a name for a dim; sizes become names too, so that a body holds for all sizes."""
    return None if None in dims else "|".join(str(dim) for dim in dims)
