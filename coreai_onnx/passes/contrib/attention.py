"""Replaces attention with ops that onnxruntime runs fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coreai_onnx.model.inventory import CONTRIB_DOMAIN
from coreai_onnx.passes.analysis.affine import affine_expr
from coreai_onnx.passes.analysis.affine_analysis import AffineAnalysis
from coreai_onnx.passes.analysis.attention_bodies import become_heads, side_by_side, unsupported
from coreai_onnx.passes.contrib.rope import Tables
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import bodies_of
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.graphs import context_of
from coreai_onnx.passes.engine.match import (
    Dim,
    attribute_of,
    composite,
    dtype_of,
    input_of,
    maker,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why
from coreai_onnx.passes.fuse.masks import is_causal
from coreai_onnx.targets.contrib import contrib_since
from coreai_onnx.targets.defects import LOWEST, LOWEST_SCORE
from coreai_onnx.targets.releases import text_of

_NAME = "scaled_dot_product_attention"
_SINGLE = np.dtype(np.float32)
# The number of the dtype in ONNX.
_INT32 = 6


@dataclass(frozen=True)
class _AttentionShapes:
    batch: Dim
    heads: int
    key_heads: int
    queries: Dim
    keys: Dim
    head_dim: int
    value_dim: int


def contrib_attention(graph: gs.Graph, why: Why) -> int:
    """Attention → 3D Attention; with grouped heads → GroupQueryAttention with its rotations.

    ai.coreai::scaled_dot_product_attention(q:[b, h, s, d], k, v) → y
    becomes     Attention<q_num_heads = h>(q:[b, s, h * d], k, v) → y:[b, s, h * d]

    The transposes between the two layouts cancel those of the model. A mask is converted to a bias,
    and rows without a key are set to zero. GroupQueryAttention needs as many keys as queries.
    Below opset 23 the replacement is MultiHeadAttention, which was measured to be slower than
    ONNX's own op.
    """
    return write_attentions(graph, why, open_groups=False)


def write_attentions(graph: gs.Graph, why: Why, *, open_groups: bool) -> int:
    """Replace attentions with onnxruntime's ops; return how many were replaced.

    Args:
        graph: The graph.
        why: Receives the near misses, unless ``open_groups`` is set.
        open_groups: Whether to replace only the attentions that become a ``GroupQueryAttention``
            that is not causal, which newer releases have, or only all others.
    """
    edit, count = Edit(graph), 0
    bodies = bodies_of(graph)
    writer = _AttentionWriter(edit, of_rows=bodies is not None and bodies.opset >= 23)
    for node in graph.nodes:
        if composite(node, _NAME) is None:
            continue
        shapes = _shapes(node)
        reason = "the dims are not known" if shapes is None else _obstacle(node, shapes)
        if shapes is None or reason:
            if not open_groups:
                why(reason, node)
            continue
        causal = writer.is_causal(node, shapes)
        grouped = shapes.heads != shapes.key_heads
        is_open = not causal and (grouped or _rotated(node, shapes) is not None)
        if open_groups and not is_open:
            continue
        if is_open and grouped and not open_groups:
            since = contrib_since("GroupQueryAttention", {"causal": 0})
            why(f"grouped heads that are not causal need onnxruntime {text_of(since)}", node)
            continue
        writer.write(node, shapes, is_causal=causal, rotates=causal or open_groups)
        count += 1
    edit.finish()
    return count


def _shapes(node: gs.Node) -> _AttentionShapes | None:
    query, key, value = (shape_of(tensor) for tensor in node.inputs[:3])
    if query is None or key is None or value is None:
        return None
    if {len(query), len(key), len(value)} != {4} or None in (*query, *key, *value):
        return None
    batch, heads, queries, head_dim = query
    _, key_heads, keys, _ = key
    whole = (heads, key_heads, head_dim, value[3])
    if not all(isinstance(dim, int) for dim in whole) or value[1] != key_heads:
        return None
    return _AttentionShapes(batch, whole[0], whole[1], queries, keys, whole[2], whole[3])  # type: ignore[arg-type]


def _obstacle(node: gs.Node, shapes: _AttentionShapes) -> str:
    """Return why none of onnxruntime's ops is equivalent; empty if one is."""
    if dtype_of(node.inputs[0]) != _SINGLE:
        return "the dtype is not float32"
    if reason := unsupported(node):
        return reason
    grouped, causal = shapes.heads != shapes.key_heads, attribute_of(node, "is_causal", 0)
    if (grouped or causal) and shapes.queries != shapes.keys:
        return "there may be more keys than queries"
    if grouped and shapes.head_dim != shapes.value_dim:
        return "values must have the size of the keys"
    # GroupQueryAttention refuses heads of other sizes.
    if grouped and shapes.head_dim % 8:
        return "head_dim must be a multiple of 8"
    mask = input_of(node, 3)
    if mask is None:
        return ""
    dims = shape_of(mask)
    if dims is None or len(dims) != 4 or dims[1] != 1:
        return "the mask must be the same for all heads"
    if dims[2:] != (shapes.queries, shapes.keys) or dims[0] not in (1, shapes.batch):
        return "the mask must have a row for each query and a column for each key"
    return ""


def _rotated(node: gs.Node, shapes: _AttentionShapes) -> list[gs.Node] | None:
    """Return the rotations of queries and keys, if GroupQueryAttention can apply them."""
    ropes = [maker(tensor) for tensor in node.inputs[:2]]
    rotations = [rope for rope in ropes if rope is not None and composite(rope, "rope") is not None]
    if shapes.queries != shapes.keys or shapes.head_dim != shapes.value_dim:
        return None
    # GroupQueryAttention refuses tables of angles for heads that are not a multiple of 16.
    return rotations if len(rotations) == len(ropes) and shapes.head_dim % 16 == 0 else None


class _AttentionWriter:
    """Writes the ops; nodes that several attentions share are created once."""

    def __init__(self, edit: Edit, *, of_rows: bool) -> None:
        """Write to ``edit``; ``of_rows`` says whether the opset has Attention."""
        self._edit, self._of_rows = edit, of_rows
        self._tables = Tables(edit)
        self._biases: dict[gs.Tensor, tuple[gs.Tensor, gs.Tensor]] = {}
        self._lengths: dict[tuple[Dim, Dim], list[gs.Tensor]] = {}
        self._positions = AffineAnalysis()

    def is_causal(self, node: gs.Node, shapes: _AttentionShapes) -> bool:
        """Whether the attribute is set, or the mask is causal and therefore not needed."""
        mask = input_of(node, 3)
        if mask is None:
            return bool(attribute_of(node, "is_causal", 0))
        queries, keys = affine_expr(shapes.queries), affine_expr(shapes.keys)
        if queries is None or keys is None or queries != keys:
            return False
        return is_causal(self._positions.of(mask), queries, keys)

    def write(
        self, node: gs.Node, shapes: _AttentionShapes, *, is_causal: bool, rotates: bool
    ) -> None:
        edit, mask, causal = self._edit, input_of(node, 3), int(is_causal)
        bias, some = (None, None) if mask is None or is_causal else self._bias(mask, node)
        biases = [] if bias is None else [bias]
        sources, tables = list(node.inputs[:3]), None
        if rotates:
            sources, tables = self._unrotated(node, shapes)
        rows = [side_by_side(edit, tensor, node) for tensor in sources]
        empty, domain = gs.Variable.empty(), CONTRIB_DOMAIN
        attrs: dict[str, Any] = {"num_heads": shapes.heads}
        # Also without groups if there are rotations, which only this op applies itself.
        if shapes.heads != shapes.key_heads or tables is not None:
            op = "GroupQueryAttention"
            inputs = [*rows, empty, empty, *self._sizes(node, shapes)]
            inputs += [*(tables or (empty, empty)), empty, *biases]
            attrs |= {"kv_num_heads": shapes.key_heads, "do_rotary": int(tables is not None)}
            if not causal:
                # Written only where needed: older releases do not know the attribute, and are
                # causal without it.
                attrs["causal"] = 0
        elif self._of_rows:
            op, domain, inputs = "Attention", "", [*rows, *biases]
            attrs = {"q_num_heads": shapes.heads, "kv_num_heads": shapes.heads, "is_causal": causal}
        else:
            op, inputs = "MultiHeadAttention", [*rows, empty, empty, *biases]
            attrs["unidirectional"] = causal
        # `contrib_since` derives the release from the number of inputs, absent ones included.
        while inputs[-1].is_empty():
            inputs.pop()
        if attribute_of(node, "scale", None) is not None:
            attrs["scale"] = node.attrs["scale"]
        attended = edit.add(op, node, inputs, domain=domain or None, **attrs)
        if op == "GroupQueryAttention":
            self._add_caches(attended)
        wide: list[Dim] = [shapes.batch, shapes.queries, shapes.heads * shapes.value_dim]
        attended.dtype, attended.shape = node.inputs[0].dtype, wide
        if some is not None:
            # The composite returns zeros for a query without a key, as torch does.
            zero = edit.constant(f"{attended.name}_zero", np.zeros((), np.float32))
            attended = edit.add("Where", node, [some, attended, zero], _SINGLE, wide)
        become_heads(edit, node, attended, shapes.heads)

    def _add_caches(self, result: gs.Tensor) -> None:
        """Declare the op's two other outputs, which are unused: before 1.28 they are required."""
        names = context_of(self._edit.graph).names
        for what in ("keys", "values"):
            self._edit.produce(result.inputs[0], gs.Variable(names.claim(f"{result.name}_{what}")))

    def _bias(self, mask: gs.Tensor, like: gs.Node) -> tuple[gs.Tensor, gs.Tensor]:
        """Return a mask as a bias, and a mask ``[b, s, 1]`` of the queries that have a key."""
        if mask in self._biases:
            return self._biases[mask]
        edit, shape = self._edit, list(mask.shape)
        lowest = edit.constant(f"{mask.name}_low", np.array(LOWEST, np.float32))
        if dtype_of(mask) == _SINGLE:  # onnxruntime hides keys with the lowest number
            # In torch, a float mask hides a key by -inf only.
            least = -np.inf
            next_one = edit.constant(f"{mask.name}_above", np.array(LOWEST_SCORE, np.float32))
            hides = edit.add("Equal", like, [mask, lowest])
            bias = edit.add("Where", like, [hides, next_one, mask], _SINGLE, shape)
        else:
            least = LOWEST
            zero = edit.constant(f"{mask.name}_zero", np.zeros((), np.float32))
            bias = edit.add("Where", like, [mask, zero, lowest], _SINGLE, shape)
        last = edit.constant(f"{mask.name}_axis", np.array([-1], np.int64))
        low = edit.constant(f"{mask.name}_least", np.array(least, np.float32))
        best = edit.add("ReduceMax", like, [bias, last], keepdims=1)
        keyed = edit.add("Greater", like, [best, low])
        head = edit.constant(f"{mask.name}_head", np.array([1], np.int64))
        some = edit.add("Squeeze", like, [keyed, head], np.dtype(np.bool_), [shape[0], shape[2], 1])
        self._biases[mask] = bias, some
        return bias, some

    def _unrotated(
        self, node: gs.Node, shapes: _AttentionShapes
    ) -> tuple[list[gs.Tensor], tuple[gs.Tensor, gs.Tensor] | None]:
        """Return queries, keys and values, and the angles shared by queries and keys."""
        sources, ropes = list(node.inputs[:3]), _rotated(node, shapes)
        if ropes is None:
            return sources, None
        first, second = (self._tables.of(rope) for rope in ropes)
        if first is None or second is None:
            return sources, None
        # The op rotates queries and keys by one pair of tables.
        if any(a is not b for a, b in zip(first, second, strict=True)):
            return sources, None
        return [*(rope.inputs[0] for rope in ropes), sources[2]], first

    def _sizes(self, node: gs.Node, shapes: _AttentionShapes) -> list[gs.Tensor]:
        """Return the last position of each batch item, and the length, in int32."""
        key = shapes.batch, shapes.keys
        if key not in self._lengths:
            edit, tensor = self._edit, node.inputs[2]
            sizes = [
                edit.size(dim, node) or edit.add("Shape", node, [tensor], start=axis, end=axis + 1)
                for dim, axis in ((shapes.batch, 0), (shapes.keys, 2))
            ]
            first = edit.constant(f"{tensor.name}_first", np.array([0], np.int64))
            whole = edit.add("Squeeze", node, [sizes[1], first])
            total = edit.add("Cast", node, [whole], to=_INT32)
            one = edit.constant(f"{tensor.name}_one", np.array(1, np.int32))
            last = edit.add("Sub", node, [total, one])
            self._lengths[key] = [edit.add("Expand", node, [last, sizes[0]]), total]
        return self._lengths[key]
