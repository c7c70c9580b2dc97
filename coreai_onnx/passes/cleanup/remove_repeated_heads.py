"""Removes the repetition of key and value heads before attention, which groups heads itself."""

from __future__ import annotations

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites, set_input
from coreai_onnx.passes.engine.match import axes_of, is_standard, made_by, shape_of
from coreai_onnx.passes.engine.narrow import computed_by
from coreai_onnx.passes.engine.why import Why


@rewrites(composites=("scaled_dot_product_attention",))
def remove_repeated_heads(_: Edit, node: gs.Node, why: Why) -> bool:
    """Heads of keys and values repeated before attention → the heads themselves.

    k:[b, 2, s, d] ─Unsqueeze(2)→ ─Expand→ ─Reshape→ [b, 8, s, d], attention(q, …)
    becomes     attention(q, k)

    In ``scaled_dot_product_attention``, query head h reads key head h // (heads / key_heads), which
    is equivalent to repeating each key head in place.
    """
    key, value = (_unrepeated(node.inputs[index]) for index in (1, 2))
    if key is None and value is None:
        return False
    if key is None or value is None:
        return why("only one of keys and values is repeated", node)
    if shape_of(key)[1] != shape_of(value)[1]:  # type: ignore[index]  # known, checked below
        return why("keys and values have different numbers of heads", node)
    set_input(node, 1, key)
    set_input(node, 2, value)
    return True


def _unrepeated(tensor: gs.Tensor) -> gs.Tensor | None:
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
