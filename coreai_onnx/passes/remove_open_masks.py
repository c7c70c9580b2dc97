"""Attention masks that hide nothing."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from coreai_onnx.passes.bodies import Bodies, bodies_of
from coreai_onnx.passes.edit import Edit
from coreai_onnx.passes.facts import attribute_of, constant_of, input_of
from coreai_onnx.passes.match import DOMAIN, composite, made_by
from coreai_onnx.passes.why import Why

NAME = "scaled_dot_product_attention"
FORMULA = "softmax(mask(scale * query @ key^T)) @ value"
_MOST = 1 << 16
"""Bigger constants are not read."""
_BODY = """<scale: float, is_causal: int = 0, window_size: int = 0,
 causal_alignment: string = "lower_right", softcap: float = 0.0, version: int = 1>
 (query, key, value) => (output) {
  queries = Cast <to=1> (query)
  keys = Cast <to=1> (key)
  values = Cast <to=1> (value)
  attended = Attention <is_causal=0, scale: float = @scale> (queries, keys, values)
  output = CastLike (attended, query)
}"""


def remove_open_masks(graph: gs.Graph, why: Why) -> int:
    """Attention with a mask that is true everywhere → attention without a mask.

    attention(q, k, v, Expand(True, [b, 1, s, s]))     becomes     attention(q, k, v)

    From opset 23, where the body is ONNX's own Attention.
    """
    bodies = bodies_of(graph)
    if bodies is None:
        return 0
    edit, count = Edit(graph), 0
    for node in graph.nodes:
        mask = input_of(node, 3) if composite(node, NAME) is not None else None
        word = None if mask is None else _open_word(mask)
        if word is None:
            continue
        if bodies.opset < 23:
            why("the opset has no Attention", node)
            continue
        if input_of(node, 4) is not None or attribute_of(node, "softcap", 0.0) != 0.0:
            why("there are sinks or a soft cap", node)
            continue
        name = provided(bodies, word)
        if name is None:
            why("the model has another body without a mask", node)
            continue
        edit.become(node, name, node.inputs[:3], domain=DOMAIN, **node.attrs)
        count += 1
    return count


def provided(bodies: Bodies, word: str) -> str | None:
    """Return the name of a function without a mask.

    A model whose attentions all have masks has the plain name on their body; it gets ``word``
    then.
    """
    known = bodies.named(NAME)
    if known is not None and len(known.inputs) > 3:
        if not bodies.rename(NAME, f"{NAME}.{word}"):
            return None
        known = None
    if known is not None and _is_plain(known):
        return NAME
    return bodies.provide(NAME, _BODY, FORMULA)


def _is_plain(function: gs.Function) -> bool:
    """Whether a body is an Attention that sees everything."""
    attentions = [node for node in function.nodes if node.op == "Attention"]
    others = {node.op for node in function.nodes} - {"Attention", "Cast", "CastLike"}
    return (
        len(attentions) == 1
        and not others
        and len(attentions[0].inputs) == 3
        and attribute_of(attentions[0], "is_causal", 0) == 0
        and attribute_of(attentions[0], "softcap", 0.0) == 0.0
    )


def _open_word(mask: gs.Tensor) -> str | None:
    """Return the variant of a mask that is true, or adds nothing, everywhere; None for others."""
    node = made_by(mask, "Expand", "Unsqueeze", "Reshape", "Identity")
    while node is not None:
        mask = node.inputs[0]
        node = made_by(mask, "Expand", "Unsqueeze", "Reshape", "Identity")
    values = constant_of(mask, at_most=_MOST)
    if values is None or not values.size:
        return None
    if values.dtype == np.bool_:
        return "mask" if values.all() else None
    return None if np.any(values) else "bias"
