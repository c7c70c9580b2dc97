"""Removes masks of positions that hide nothing, and replaces causal ones."""

from __future__ import annotations

import numpy as np

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes.analysis.affine import (
    AffineExpr,
    AffineMask,
    AffineTensor,
    AffineValue,
    affine_expr,
)
from coreai_onnx.passes.analysis.affine_analysis import AffineAnalysis
from coreai_onnx.passes.analysis.attention_bodies import NAME, attention_without_mask, shares_heads
from coreai_onnx.passes.analysis.contract_facts import positions_of
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, makes_functions
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    attribute_of,
    behind,
    constant_of,
    dtype_of,
    input_of,
    same_known_shape,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why


@rewrites("And")
def remove_known_conditions(edit: Edit, node: gs.Node, why: Why) -> bool:
    """And with a mask of positions that is true everywhere → the other mask.

    And(causal, Equal(CumSum(i[1:] - i[:-1] != 1), …))     becomes     causal

    Models that support packed sequences write such checks. They are true if positions are
    consecutive. The mask of the tokens is true in a decoder whose contract excludes padding.
    """
    positions = edit.once(positions_of, edit.graph)
    for condition, other in (node.inputs, node.inputs[::-1]):
        values = positions.of(condition)
        if isinstance(values, AffineTensor) and values.splat == 1:
            replaced = _replaced(edit, node, other)
            return replaced or why("the other mask may have to be expanded", node)
    return False


def _replaced(edit: Edit, node: gs.Node, other: gs.Tensor) -> bool:
    """Replace a node with its other operand, expanded if it is smaller."""
    if same_known_shape(other, node.outputs[0]):
        return edit.bypass(node, other)
    shape = shape_of(node.outputs[0])
    # `Edit.size` reads a named dim from an input of the graph that declares it.
    named = {dim for tensor in edit.graph.inputs for dim in shape_of(tensor) or ()}
    if shape is None or shape_of(other) is None:
        return False
    if not all(isinstance(dim, int) or (dim is not None and dim in named) for dim in shape):
        return False  # before a node is created, which would be dead
    sizes = [size for dim in shape if (size := edit.size(dim, node)) is not None]
    vector = edit.add("Concat", node, sizes, np.dtype(np.int64), [len(shape)], axis=0)
    edit.become(node, "Expand", [other, vector])
    return True


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
    return _without_mask(edit, node, why, bodies, word, causal=False)


def _without_mask(
    edit: Edit, node: gs.Node, why: Why, bodies: Bodies, word: str, *, causal: bool
) -> bool:
    # The body that `attention_without_mask` provides has neither.
    if input_of(node, 4) is not None or attribute_of(node, "softcap", 0.0) != 0.0:
        return why("there are sinks or a soft cap", node)
    if not shares_heads(node):
        return why("keys and values may have different heads", node)
    name = attention_without_mask(bodies, node, word, causal=causal)
    if name is None:
        return why(
            f"the model has another {'causal body' if causal else 'body without a mask'}", node
        )
    attrs = node.attrs | (_CAUSAL if causal else _EVERYWHERE)
    edit.become(node, name, node.inputs[:3], domain=STANDARD_DOMAIN, **attrs)
    return True


def _open_word(mask: gs.Tensor, positions: AffineAnalysis) -> str | None:
    """Return the variant of a mask that is true or zero everywhere; None for other masks."""
    affine = positions.of(mask)
    if (
        isinstance(affine, AffineTensor)
        and affine.splat == 1
        and dtype_of(mask) == np.dtype(np.bool_)
    ):
        return "mask"
    source = behind(mask, "Expand", "Unsqueeze", "Reshape", "Identity")
    values = constant_of(source, at_most=_MOST)
    if values is None or not values.size:
        return None
    if values.dtype == np.bool_:
        return "mask" if values.all() else None
    # A mask of floats is added to the scores, so zeros hide nothing.
    return None if np.any(values) else "bias"


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
    affine = None if mask is None else positions.of(mask)
    if not isinstance(affine, AffineMask) or len(affine.constraints) != 1:
        return False
    queries, keys = (_length(tensor) for tensor in node.inputs[:2])
    if queries is None or keys is None:
        return why("the lengths are not known", node)
    if not is_causal(affine, queries, keys):
        return why("the mask depends on positions, but is not causal", node)
    if queries != keys:
        return why("there may be more keys than queries", node)
    if bodies.opset < 23:
        return why("the opset has no Attention", node)
    return _without_mask(edit, node, why, bodies, "mask", causal=True)


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
