"""Removes what repeats a tensor for readers that broadcast it, or group heads, themselves."""

from __future__ import annotations

from coreai_onnx.passes.analysis.shape_values import ShapeValueAnalysis
from coreai_onnx.passes.cleanup.remove_noops import remove_noop_expands
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import model_bodies
from coreai_onnx.passes.engine.body_types import dims_by_axis
from coreai_onnx.passes.engine.edit import Edit, rewrites, set_input
from coreai_onnx.passes.engine.match import (
    Dim,
    axes_of,
    broadcast_shape,
    is_standard,
    made_by,
    shape_of,
)
from coreai_onnx.passes.engine.narrow import computed_by
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
        if result is None or broadcast_shape(shapes) != result:
            why("the shape may change without the Expand", node)
            continue
        set_input(node, index, expand.inputs[0])
        count += 1
    return count


def _target(node: gs.Node) -> tuple[Dim, ...] | None:
    """Return the target of an Expand, if it is known to be the shape of its result."""
    dims = ShapeValueAnalysis().of(node.inputs[1])
    return None if dims is None else dims.items


def remove_expands_in_functions(graph: gs.Graph, why: Why) -> int:
    """Expand of an argument that has the target shape at every call → nothing.

    f(q, mask) = Attention(q, Expand(mask, [T, S])), every call's mask is [batch, 1, T, S]
    becomes     f(q, mask) = Attention(q, mask)
    """
    bodies = model_bodies(graph)
    if not isinstance(graph, gs.Function) or bodies is None:
        return 0
    shapes = [_shared(dims) for dims in bodies.arguments(graph)]
    declared = [(tensor, tensor.shape) for tensor in graph.inputs]
    try:
        for tensor, shape in zip(graph.inputs, shapes, strict=True):
            tensor.shape = shape
        return remove_noop_expands(graph, why)
    finally:  # a body declares no shapes
        for tensor, shape in declared:
            tensor.shape = shape


def _shared(tensors: list[gs.Tensor]) -> list[str | None] | None:
    """Return one shape for the tensors of all calls; equal names mean equal dims at each call.

    The dims ``batch`` and ``texts`` of two calls become ``batch|texts``.
    """
    axes = dims_by_axis(tensors)
    if axes is None:
        return None
    # Sizes become names too, so that a body holds for all sizes.
    return [None if None in dims else "|".join(map(str, dims)) for dims in axes]


@rewrites(composites=("scaled_dot_product_attention",))
def remove_repeated_heads(_: Edit, node: gs.Node, why: Why) -> bool:
    """Heads of keys and values repeated before attention → the heads themselves.

    k:[b, 2, s, d] ─Unsqueeze(2)→ ─Expand→ ─Reshape→ [b, 8, s, d], attention(q, …)
    becomes     attention(q, k)

    In ``scaled_dot_product_attention``, query head h reads key head h // (heads / key_heads), which
    is equivalent to repeating each key head in place.
    """
    key, value = (unrepeated(node.inputs[index]) for index in (1, 2))
    if key is None and value is None:
        return False
    if key is None or value is None:
        return why("only one of keys and values is repeated", node)
    if shape_of(key)[1] != shape_of(value)[1]:  # type: ignore[index]  # known, checked below
        return why("keys and values have different numbers of heads", node)
    set_input(node, 1, key)
    set_input(node, 2, value)
    return True


def unrepeated(tensor: gs.Tensor) -> gs.Tensor | None:
    """Return ``k`` of ``Reshape(Expand(Unsqueeze(k, 2)))``, matched by the intermediate shapes."""
    reshape = made_by(tensor, "Reshape")
    expand = None if reshape is None else computed_by(reshape.inputs[0], "Expand")
    unsqueeze = None if expand is None else made_by(expand.inputs[0], "Unsqueeze")
    # The new axis must follow that of the heads. Before it, the Reshape would order the heads as k0
    # k1 k0 k1, which attention does not do by itself.
    if expand is None or unsqueeze is None or axes_of(unsqueeze) not in ([2], [-3]):
        return None
    source = unsqueeze.inputs[0]
    before, wide, after = shape_of(source), shape_of(expand.outputs[0]), shape_of(tensor)
    if before is None or wide is None or after is None or len(before) != 4 or len(wide) != 5:
        return None
    heads, groups = before[1], wide[2]
    # The Expand must repeat along the new axis only; it may broadcast another axis as well.
    kept = (wide[0], wide[1], *wide[3:]) == before and None not in before
    whole = isinstance(heads, int) and isinstance(groups, int)
    if not kept or not whole or reshape is None or not is_standard(reshape, "Reshape"):
        return None
    product = int(heads) * int(groups)  # type: ignore[arg-type]  # ints, checked above
    return source if after == (before[0], product, before[2], before[3]) else None
