"""Attention bodies without a mask, for passes that remove a mask."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.bodies import Bodies
from coreai_onnx.passes.engine.match import attribute_of

NAME = "scaled_dot_product_attention"
FORMULA = "softmax(mask(scale * query @ key^T)) @ value"
_BODY = """<scale: float, is_causal: int = {causal}, window_size: int = 0,
 causal_alignment: string = "lower_right", softcap: float = 0.0, version: int = 1>
 (query, key, value) => (output) {{
  queries = Cast <to=1> (query)
  keys = Cast <to=1> (key)
  values = Cast <to=1> (value)
  attended = Attention <is_causal={causal}, scale: float = @scale> (queries, keys, values)
  output = CastLike (attended, query)
}}"""


def attention_without_mask(bodies: Bodies, word: str, *, causal: bool = False) -> str | None:
    """Return the name of an attention without a mask, from opset 23; None if the name is taken.

    In a model whose attentions all have masks, the body with the mask has the plain name. It is
    then renamed to the variant ``word``.

    Args:
        bodies: The functions of the model.
        word: The variant of the attention with the mask that is removed.
        causal: Whether a query attends only to keys up to its own position.
    """
    known = bodies.named(NAME)
    if known is not None and len(known.inputs) > 3:
        if not bodies.rename(NAME, f"{NAME}.{word}"):
            return None
        known = None
    names = [NAME, f"{NAME}.causal"] if causal and known is not None else [NAME]
    for name in names:
        found = bodies.named(name)
        if found is not None and _is_plain(found, causal=causal):
            return name
    return bodies.provide(names[-1], _BODY.format(causal=int(causal)), FORMULA)


def _is_plain(function: gs.Function, *, causal: bool) -> bool:
    """Whether a body is an Attention without a mask that is not causal, or that is causal."""
    attentions = [node for node in function.nodes if node.op == "Attention"]
    others = {node.op for node in function.nodes} - {"Attention", "Cast", "CastLike"}
    return (
        len(attentions) == 1
        and not others
        and len(attentions[0].inputs) == 3
        and attribute_of(attentions[0], "is_causal", 0) == int(causal)
        and attribute_of(attentions[0], "softcap", 0.0) == 0.0
    )
