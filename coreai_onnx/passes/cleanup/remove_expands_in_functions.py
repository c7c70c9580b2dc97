"""Removes Expands from function bodies if no call needs them."""

from __future__ import annotations

from coreai_onnx.passes.cleanup.remove_noop_expands import remove_noop_expands
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import model_bodies
from coreai_onnx.passes.engine.match import Dim, shape_of
from coreai_onnx.passes.engine.why import Why


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
