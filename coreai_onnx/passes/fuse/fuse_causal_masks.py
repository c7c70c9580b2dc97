"""Replaces causal masks that a model computes from positions."""

from __future__ import annotations

from coreai_onnx.passes.analysis.affine import AffineExpr, AffineMask, AffineValue, affine_expr
from coreai_onnx.passes.analysis.affine_analysis import AffineAnalysis
from coreai_onnx.passes.analysis.attention_bodies import NAME, attention_without_mask, shares_heads
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, makes_functions
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import DOMAIN, attribute_of, input_of, shape_of
from coreai_onnx.passes.engine.why import Why

# The mask of the call overrides these attributes, so its own values say nothing.
_CAUSAL = {"is_causal": 1, "causal_alignment": "upper_left", "window_size": 0}


@makes_functions
@rewrites(composites=(NAME,))
def fuse_causal_masks(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """Attention whose mask keeps the keys up to the query's position → causal attention.

    attention(q, k, v, LessOrEqual(j:[1, 1, 1, s], i:[1, 1, s, 1])), i and j count from 0
    becomes     attention(q, k, v, is_causal=1, causal_alignment="upper_left")

    From opset 23, where the body is ONNX's own Attention: the body for lower opsets computes a mask
    in every call. Only if there are as many keys as queries.
    """
    positions = edit.once(AffineAnalysis)
    mask = input_of(node, 3)
    known = None if mask is None else positions.of(mask)
    if not isinstance(known, AffineMask) or len(known.constraints) != 1:
        return False
    reason = _obstacle(node, known, bodies.opset)
    name = None if reason else attention_without_mask(bodies, node, "mask", causal=True)
    if name is None:
        return why(reason or "the model has another causal body", node)
    attrs = dict(node.attrs) | _CAUSAL
    edit.become(node, name, node.inputs[:3], domain=DOMAIN, **attrs)
    return True


def _obstacle(node: gs.Node, mask: AffineMask, opset: int) -> str:
    queries, keys = (_length(tensor) for tensor in node.inputs[:2])
    if queries is None or keys is None:
        return "the lengths are not known"
    if not is_causal(mask, queries, keys):
        return "the mask is of positions, but not causal"
    if queries != keys:
        return "there may be more keys than queries"
    if opset < 23:
        return "the opset has no Attention"
    # The body that `attention_without_mask` provides has neither.
    if input_of(node, 4) is not None or attribute_of(node, "softcap", 0.0) != 0.0:
        return "there are sinks or a soft cap"
    return "" if shares_heads(node) else "keys and values may have different heads"


def _length(tensor: gs.Tensor) -> AffineExpr | None:
    shape = shape_of(tensor)
    return None if shape is None or len(shape) != 4 else affine_expr(shape[2])


def is_causal(mask: AffineValue | None, queries: AffineExpr, keys: AffineExpr) -> bool:
    """Whether a mask is true where key - query <= keys - queries."""
    if not isinstance(mask, AffineMask) or len(mask.constraints) != 1:
        return False
    if len(mask.dims) < 2 or mask.dims[-2:] != (queries, keys):
        return False
    (constraint,) = mask.constraints
    steps = (0,) * (len(mask.dims) - 2) + (-1, 1)
    return constraint.steps == steps and constraint.start == queries - keys
