"""Attention in one form, whether it is a call of the composite or products around a Softmax."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from coreai_onnx.passes.cleanup.remove_repetitions import unrepeated
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.match import (
    attribute_of,
    behind,
    cast_to,
    dtype_of,
    input_of,
    ints_of,
    is_standard,
    made_by,
    maker,
    scalar_of,
    scaled,
    shape_of,
)

_BOOL = 9
_LAST = (-1, 3)
_TURNED = [0, 1, 3, 2]


@dataclass(frozen=True)
class AttentionForm:
    """An attention.

    Attributes:
        node: The node that returns ``[b, h, s, d]``.
        query: ``[b, h, s, d]``.
        keys: ``[b, kv_h, t, d]``, and the node that reads it.
        values: The same of the values.
        mask: What is true where a query attends to a key; None for everywhere.
        bias: What is added to the scores, or None.
        sinks: One logit for each head, ``[h]`` or ``[1, h, 1, 1]``, or None.
        scale: The factor of the scores; None for the default.
        softcap: The bound of the scores; 0 for none.
    """

    node: gs.Node
    query: gs.Tensor
    keys: tuple[gs.Tensor, gs.Node]
    values: tuple[gs.Tensor, gs.Node]
    mask: gs.Tensor | None
    bias: gs.Tensor | None
    sinks: gs.Tensor | None
    scale: float | None
    softcap: float


def attention_form(node: gs.Node) -> AttentionForm | str:
    """Return the form of a call of the composite or of a Softmax, or why there is none."""
    if is_standard(node, "Softmax"):
        return _written(node)
    query, keys, values = node.inputs[:3]
    return AttentionForm(
        node, query, (keys, node), (values, node), input_of(node, 3), None, input_of(node, 4),
        attribute_of(node, "scale", None), float(attribute_of(node, "softcap", 0.0)),
    )  # fmt: skip


@dataclass(frozen=True)
class _Scores:
    """Scores before some of the nodes that follow the product, and what those nodes do."""

    tensor: gs.Tensor
    mask: gs.Tensor | None = None
    bias: gs.Tensor | None = None
    factor: float = 1.0
    softcap: float = 0.0


def _written(softmax: gs.Node) -> AttentionForm | str:
    """Return the form of MatMul(Softmax(MatMul(q, kᵀ) …), v)."""
    if attribute_of(softmax, "axis", -1) not in _LAST:
        return "the Softmax is not over the keys"
    tensor, sinks, node = softmax.inputs[0], None, _reader(softmax)
    if node is not None and is_standard(node, "Slice"):
        parts = _before_sinks(tensor, node)
        if parts is None:
            return "the Softmax has columns that are not known to be sinks"
        (tensor, sinks), node = parts, _reader(node)
    if node is None or not is_standard(node, "MatMul") or len(shape_of(node.inputs[1]) or ()) != 4:
        return "the weights are not read by a product with the values alone"
    scores = _before_terms(tensor)
    product = None if scores is None else made_by(scores.tensor, "MatMul")
    turned = None if product is None else made_by(product.inputs[1], "Transpose")
    if scores is None or product is None or turned is None:
        return "the scores are not a product of queries and transposed keys"
    if attribute_of(turned, "perm", None) != _TURNED:
        return "the scores are not a product of queries and transposed keys"
    keys, values = _source(turned.inputs[0], turned), _source(node.inputs[1], node)
    # softcap * tanh(factor * x) is what the op computes with a scale of factor * softcap.
    scale = scores.factor * (scores.softcap or 1.0)
    if not scale:  # the op would take its default
        return "the scale is zero"
    return AttentionForm(
        node, product.inputs[0], keys, values, scores.mask, scores.bias, sinks, scale,
        scores.softcap,
    )  # fmt: skip


def _reader(node: gs.Node) -> gs.Node | None:
    """Return the one node that reads a result as its first input."""
    readers = node.outputs[0].outputs
    alone = len(readers) == 1 and readers[0].inputs[0] is node.outputs[0]
    return readers[0] if alone else None


def _source(tensor: gs.Tensor, reader: gs.Node) -> tuple[gs.Tensor, gs.Node]:
    """Return keys or values before their heads are repeated, and what reads them."""
    source = unrepeated(tensor)
    return (tensor, reader) if source is None else (source, source.outputs[0])


def _before_sinks(tensor: gs.Tensor, kept: gs.Node) -> tuple[gs.Tensor, gs.Tensor] | None:
    """Return scores and sinks of Concat(scores, sinks), whose Softmax is sliced to the scores."""
    bounds = [ints_of(one) for one in kept.inputs[1:]]
    if bounds not in [[[0], [-1], [axis], [1]] for axis in _LAST]:
        return None
    less = made_by(tensor, "Sub")
    # A Softmax does not change if the largest score of a row is subtracted.
    if less is not None and (shape_of(less.inputs[1]) or (None,))[-1] == 1:
        tensor = less.inputs[0]
    concat = made_by(tensor, "Concat")
    if concat is None or len(concat.inputs) != 2 or attribute_of(concat, "axis", 0) not in _LAST:
        return None
    scores, sinks = concat.inputs[0], behind(concat.inputs[1], "Expand")
    shape, heads = shape_of(sinks), (shape_of(scores) or (None,) * 4)[1]
    return (scores, sinks) if shape == (1, heads, 1, 1) and heads is not None else None


def _before_terms(tensor: gs.Tensor) -> _Scores | None:
    """Return scores before mask, bias, soft cap and scale."""
    scores = _Scores(tensor)
    steps = (_before_mask, _before_bias, _before_softcap, _before_factors)
    for step in steps:
        after = step(scores)
        if after is None:
            return None
        scores = after
    return scores


def _before_mask(scores: _Scores) -> _Scores | None:
    node, low = maker(scores.tensor), _lowest(scores.tensor)
    if node is not None and is_standard(node, "Add"):
        for tensor, other in (node.inputs, node.inputs[::-1]):
            mask = _visible(other, low)
            if mask is not None:
                return replace(scores, tensor=tensor, mask=mask)
    if node is not None and is_standard(node, "Where"):
        # Where(Cast(Where(mask, 0, low)), low, scores): true where the mask is not.
        hidden, value, tensor = node.inputs
        cast, filled = made_by(hidden, "Cast"), scalar_of(value)
        is_hidden = cast_to(cast) == _BOOL and filled is not None and filled <= low
        mask = _visible(cast.inputs[0], low) if cast is not None and is_hidden else None
        return None if mask is None else replace(scores, tensor=tensor, mask=mask)
    return scores


def _lowest(tensor: gs.Tensor) -> float:
    dtype = dtype_of(tensor)
    is_half = dtype is not None and dtype.kind == "f" and dtype.itemsize == 2
    return float(np.finfo(np.float16 if is_half else np.float32).min)


def _visible(tensor: gs.Tensor, low: float) -> gs.Tensor | None:
    """Return the mask of Where(mask, 0, lowest)."""
    node = made_by(behind(tensor, "Expand"), "Where")
    values = [] if node is None else [scalar_of(one) for one in node.inputs[1:]]
    if node is None or values[0] != 0 or values[1] is None or values[1] > low:
        return None
    return node.inputs[0]


def _before_bias(scores: _Scores) -> _Scores:
    node = made_by(scores.tensor, "Add")
    if node is None:
        return scores
    full = shape_of(scores.tensor)
    for tensor, other in (node.inputs, node.inputs[::-1]):
        if shape_of(tensor) == full and shape_of(other) != full:
            return replace(scores, tensor=tensor, bias=other)
    return scores


def _before_softcap(scores: _Scores) -> _Scores:
    node = made_by(scores.tensor, "Mul")
    parts = None if node is None else scaled(node)
    tanh = None if parts is None else made_by(parts[0], "Tanh")
    if parts is None or tanh is None or parts[1] <= 0:
        return scores
    return replace(scores, tensor=tanh.inputs[0], softcap=parts[1])


def _before_factors(scores: _Scores) -> _Scores:
    while (node := made_by(scores.tensor, "Mul", "Div")) is not None:
        if node.op == "Mul":
            parts = scaled(node)
        else:
            divisor = scalar_of(node.inputs[1], node.inputs[0])
            parts = (node.inputs[0], 1 / divisor) if divisor else None
        if parts is None:
            break
        scores = replace(scores, tensor=parts[0], factor=scores.factor * parts[1])
    return scores
