"""Turns attention over a cache, or without a mask, into onnxruntime's operators."""

from __future__ import annotations

import numpy as np

from coreai_onnx.model.inventory import CONTRIB_DOMAIN
from coreai_onnx.passes.analysis.affine import AffineExpr, AffineTensor, affine_expr
from coreai_onnx.passes.analysis.affine_analysis import AffineAnalysis
from coreai_onnx.passes.analysis.attention_bodies import (
    NAME,
    become_heads,
    side_by_side,
    unsupported,
)
from coreai_onnx.passes.analysis.contract_facts import positions_of
from coreai_onnx.passes.contrib.attention import write_attentions
from coreai_onnx.passes.contrib.cached_keys import Joined, joined
from coreai_onnx.passes.contrib.rope import Tables
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import bodies_of
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    attribute_of,
    composite,
    dtype_of,
    input_of,
    maker,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why
from coreai_onnx.passes.fuse.masks import is_causal

_FLOAT = np.dtype(np.float32)


@rewrites(composites=(NAME,))
def contrib_cached_attention(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Causal attention over past and new tokens → ONNX's Attention, which concatenates them.

    Concat(past:[b, h, p, d], k:[b, h, s, d]) → keys, attention(q, keys, values, j <= i + p)
    becomes     Attention(q:[b, s, h * d], k, v, , past, past_values, is_causal=1) → y, keys, values

    The op reads ``[b, s, h * d]``, so that the transposes cancel those of the model. A rotation in
    between is replaced with com.microsoft's. From opset 23.
    """
    bodies = bodies_of(edit.graph)
    if bodies is None:
        return False
    positions = edit.once(positions_of, edit.graph)
    keys, values = (joined(tensor, node, edit) for tensor in node.inputs[1:3])
    if keys is None or values is None or keys.begin or values.begin:
        return False
    query, new_keys, new_values = (shape_of(t) for t in (node.inputs[0], keys.new, values.new))
    if query is None or new_keys is None or new_values is None or None in query:
        return why("the dims are not known", node)
    sizes = (*query[1::2], *new_keys[1::2], *new_values[1::2])
    if not all(isinstance(size, int) for size in sizes):
        return why("heads and their sizes are not known", node)
    if not query[2] == new_keys[2] == new_values[2]:
        return why("there must be as many new keys as queries", node)
    if any(dtype_of(t) != _FLOAT for t in (node.inputs[0], keys.whole, values.whole)):
        return why("the dtype is not float32", node)
    if reason := unsupported(node):
        return why(reason, node)
    if not _is_causal(node, keys, positions):
        return why("the mask is not known to be causal", node)
    if bodies.opset < 23:
        return why("the opset has no Attention", node)
    edit.once(_CachedAttentionWriter, edit).write(node, keys, values)
    return True


def _is_causal(node: gs.Node, keys: Joined, positions: AffineAnalysis) -> bool:
    """Whether each query attends to all earlier positions and to its own."""
    mask = input_of(node, 3)
    queries = affine_expr((shape_of(node.inputs[0]) or (None,) * 4)[2])
    past = affine_expr((shape_of(keys.past) or (None,) * 4)[2])
    if mask is None:
        # With past tokens, the last query is aligned with the last key. A single query may attend
        # to all keys, so it needs no mask.
        aligned = attribute_of(node, "causal_alignment", "lower_right") == "lower_right"
        return aligned if attribute_of(node, "is_causal", 0) else queries == AffineExpr(1)
    rule = positions.of(mask)
    if isinstance(rule, AffineTensor):
        return rule.splat == 1 and queries == AffineExpr(1)
    return past is not None and queries is not None and is_causal(rule, queries, queries + past)


class _CachedAttentionWriter:
    """Writes the ops; the tables of angles are created once."""

    def __init__(self, edit: Edit) -> None:
        self._edit = edit
        self._tables = Tables(edit)

    def write(self, node: gs.Node, keys: Joined, values: Joined) -> None:
        edit, (batch, heads, length, _) = self._edit, list(node.inputs[0].shape)
        size = values.new.shape[3]
        rows = [self._row(node.inputs[0], node), self._row(keys.new, node)]
        rows.append(side_by_side(edit, values.new, node))
        inputs = [*rows, gs.Variable.empty(), keys.past, values.past]
        wide = gs.Variable(f"{node.outputs[0].name}_row", _FLOAT, [batch, length, heads * size])
        attrs = {"q_num_heads": heads, "kv_num_heads": keys.new.shape[1], "is_causal": 1}
        if attribute_of(node, "scale", None) is not None:
            attrs["scale"] = node.attrs["scale"]
        # The op returns the joined keys and values, which may be outputs of the model: the next
        # cache.
        for part in (keys, values):
            edit.remove(part.concat)
        edit.node("Attention", node, inputs, outputs=[wide, keys.whole, values.whole], **attrs)
        become_heads(edit, node, wide, heads)

    def _row(self, tensor: gs.Tensor, like: gs.Node) -> gs.Tensor:
        """Return ``[b, h, s, d]`` as ``[b, s, h * d]``; a rotation moves to the new layout."""
        rope = maker(tensor)
        angles = None if rope is None or tensor.shape[3] % 16 else self._angles(rope)
        if rope is None or angles is None:
            return side_by_side(self._edit, tensor, like)
        row = side_by_side(self._edit, rope.inputs[0], like)
        inputs = [row, *angles]
        return self._edit.add(
            "RotaryEmbedding", like, inputs, row.dtype, row.shape, domain=CONTRIB_DOMAIN
        )

    def _angles(self, rope: gs.Node) -> list[gs.Tensor] | None:
        """Return the first position and the tables of a rotation by either op."""
        if (rope.domain, rope.op) == (CONTRIB_DOMAIN, "RotaryEmbedding"):
            return list(rope.inputs[1:]) if len(rope.inputs) == 4 and not rope.attrs else None
        if composite(rope, "rope") is None:
            return None
        tables = self._tables.of(rope)
        if tables is None:
            return None
        return [self._edit.constant(f"{rope.name}_start", np.zeros(1, np.int64)), *tables]


def contrib_open_attention(graph: gs.Graph, why: Why) -> int:
    """Attention that is not causal, with grouped or rotated heads → GroupQueryAttention.

    ai.coreai::scaled_dot_product_attention(q:[b, h, s, d], k:[b, h / 4, s, d], v) → y
    becomes     GroupQueryAttention<causal = 0>(q:[b, s, h * d], k, v) → y:[b, s, h * d]

    This pass is separate from the other attentions because onnxruntime supports it from 1.30 on.
    """
    return write_attentions(graph, why, open_groups=True)
