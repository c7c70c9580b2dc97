"""Removes attention masks that hide nothing."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.analysis.affine import AffineTensor
from coreai_onnx.passes.analysis.affine_analysis import AffineAnalysis
from coreai_onnx.passes.analysis.attention_bodies import NAME, attention_without_mask, shares_heads
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, makes_functions
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    DOMAIN,
    attribute_of,
    constant_of,
    dtype_of,
    input_of,
    made_by,
)
from coreai_onnx.passes.engine.why import Why

_MOST = 1 << 16
"""Constants with more elements are not read."""
_EVERYWHERE = {"is_causal": 0, "window_size": 0}
"""Attributes that a mask overrides."""


@makes_functions
@rewrites(composites=(NAME,))
def remove_open_masks(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """Attention with a mask that is true everywhere → attention without a mask.

    attention(q, k, v, Expand(True, [b, 1, s, s]))     becomes     attention(q, k, v)
    """
    positions = edit.once(AffineAnalysis)
    mask = input_of(node, 3)
    word = None if mask is None else _open_word(mask, positions)
    if word is None:
        return False
    # The body that `attention_without_mask` provides has neither.
    if input_of(node, 4) is not None or attribute_of(node, "softcap", 0.0) != 0.0:
        return why("there are sinks or a soft cap", node)
    if not shares_heads(node):
        return why("keys and values may have different heads", node)
    name = attention_without_mask(bodies, node, word)
    if name is None:
        return why("the model has another body without a mask", node)
    edit.become(node, name, node.inputs[:3], domain=DOMAIN, **node.attrs | _EVERYWHERE)
    return True


def _open_word(mask: gs.Tensor, positions: AffineAnalysis) -> str | None:
    """Return the variant of a mask that is true or zero everywhere; None for other masks."""
    known = positions.of(mask)
    if (
        isinstance(known, AffineTensor)
        and known.splat == 1
        and dtype_of(mask) == np.dtype(np.bool_)
    ):
        return "mask"
    node = made_by(mask, "Expand", "Unsqueeze", "Reshape", "Identity")
    while node is not None:
        mask = node.inputs[0]
        node = made_by(mask, "Expand", "Unsqueeze", "Reshape", "Identity")
    values = constant_of(mask, at_most=_MOST)
    if values is None or not values.size:
        return None
    if values.dtype == np.bool_:
        return "mask" if values.all() else None
    # A mask of floats is added to the scores, so zeros hide nothing.
    return None if np.any(values) else "bias"
