"""Attention to rows of projections, without transposes: in bodies, or by calls of our kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes.analysis.attention_bodies import (
    NAME,
    PERM,
    joined_heads,
    provide_variant,
    shares_heads,
    split_heads,
    unsupported,
)
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, makes_functions, model_bodies
from coreai_onnx.passes.engine.edit import Edit, rewrites, set_input
from coreai_onnx.passes.engine.match import (
    attribute_of,
    input_of,
    is_standard,
    made_by,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why

_BSHD = f"{NAME}_bshd"
_MASK = 3


@dataclass(frozen=True)
class _Heads:
    """The number of heads of queries, keys and values, and their sizes."""

    queries: int
    keys: int
    head_dim: int
    value_dim: int


def attention_of_rows(graph: gs.Graph, why: Why) -> int:
    """Attention with transposes at every call → 3D Attention between the opposite transposes.

    f(q:[b, h, s, d], k, v) = Attention(q, k, v), every call's q, k, v and y are transposed
    becomes     f(q, k, v) = Transpose(Reshape(Attention<q_num_heads = h>(rows of q, of k, of v)))

    Applies to the bodies of scaled_dot_product_attention. The call and its meaning do not change,
    so our kernels still replace it. A runtime that inlines bodies cancels the transposes against
    those of the calls, so that nothing is copied from one layout to the other.
    """
    bodies = model_bodies(graph)
    if not isinstance(graph, gs.Function) or bodies is None or graph.domain != STANDARD_DOMAIN:
        return 0
    if graph.name.partition(".")[0] != NAME:
        return 0
    attention = next((node for node in graph.nodes if is_standard(node, "Attention")), None)
    # With the attribute, an earlier round has rewritten the body.
    if attention is None or "q_num_heads" in attention.attrs:
        return 0
    reason = _obstacle(attention, bodies.calls(graph))
    heads = None if reason else _shared_heads(bodies.calls(graph))
    end = None if heads is None else _end(graph, attention)
    if heads is None or end is None:
        why(reason or "the numbers and sizes of heads differ or are not known", attention)
        return 0
    _write(graph, attention, end, heads)
    return 1


def _obstacle(attention: gs.Node, calls: list[gs.Node]) -> str:
    """Return why transposes would not cancel."""
    if len(attention.outputs) != 1 or len(attention.inputs) > _MASK + 1:
        return "it has a cache"
    for call in calls:
        if any(not _turned(tensor) for tensor in call.inputs[:3]):
            return "queries, keys or values of a call are not transposed from rows"
        readers = call.outputs[0].outputs
        # A transpose that does not cancel is a copy that the body did not make before.
        if not readers or any(attribute_of(r, "perm", None) != PERM for r in readers):
            return "the result of a call is not transposed to rows"
        mask = input_of(call, _MASK)
        dims = (1, 1) if mask is None else shape_of(mask)
        if dims is None or (mask is not None and len(dims) != 4) or dims[1] != 1:
            return "the mask of a call must be the same for all heads"
    return ""


def _turned(tensor: gs.Tensor) -> bool:
    node = made_by(tensor, "Transpose")
    return node is not None and attribute_of(node, "perm", None) == PERM


def _shared_heads(calls: list[gs.Node]) -> _Heads | None:
    """Return the heads if they are the same in all calls."""
    kinds: set[_Heads] = set()
    for call in calls:
        query, key, value = (shape_of(tensor) for tensor in call.inputs[:3])
        if query is None or key is None or value is None or {4} != {*map(len, (query, key, value))}:
            return None
        sizes = query[1], key[1], query[3], value[3]
        if key[1] != value[1] or not all(isinstance(size, int) for size in sizes):
            return None
        kinds.add(_Heads(*(int(size) for size in sizes if isinstance(size, int))))
    return kinds.pop() if len(kinds) == 1 else None


def _end(graph: gs.Function, attention: gs.Node) -> gs.Node | None:
    """Return the node that zeroes rows without a key, or the attention if there is none."""
    (attended,) = attention.outputs
    readers = [
        node for node in attended.outputs if node.inputs[0] is attended or node.op == "Where"
    ]
    if not readers:
        return attention if any(output is attended for output in graph.outputs) else None
    if len(readers) > 1:
        return None
    # The cast back from float32 is elementwise: it may follow the new transpose.
    if is_standard(readers[0], "Cast", "CastLike"):
        return attention
    chosen = is_standard(readers[0], "Where") and readers[0].inputs[1] is attended
    return readers[0] if chosen else None


def _write(graph: gs.Function, attention: gs.Node, end: gs.Node, heads: _Heads) -> None:
    edit = Edit(graph)
    key_width, value_width = heads.keys * heads.head_dim, heads.keys * heads.value_dim
    widths = heads.queries * heads.head_dim, key_width, value_width
    for index, width in enumerate(widths):
        _, row = joined_heads(edit, attention.inputs[index], attention, width)
        set_input(attention, index, row)
    attention.attrs |= {"q_num_heads": heads.queries, "kv_num_heads": heads.keys}
    inputs, attrs = list(end.inputs), dict(end.attrs)
    if end is not attention and len(graph.inputs) > _MASK:  # [b, 1, s, 1]: a row has a key
        axis = edit.constant("heads", np.array([1], np.int64))
        inputs[0] = edit.add("Squeeze", end, [inputs[0], axis])
    row = edit.add(end.op, end, inputs, **attrs)
    apart = split_heads(edit, row, end, heads.queries, heads.value_dim)
    edit.become(end, "Transpose", [apart], perm=PERM)
    edit.finish()


@makes_functions
@rewrites(composites=(NAME,))
def attention_without_transposes(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """Attention between transposes → one call for heads behind tokens.

    Transpose(q:[b, s, h, d]), k and v likewise, attention(q, k, v, mask) ─Transpose→ y
    becomes     scaled_dot_product_attention_bshd(q, k, v, mask) → y

    Our kernel reads rows with a distance; the body transposes.
    """
    if not all(_turned(tensor) for tensor in node.inputs[:3]):
        return False
    reason = unsupported(node) or ("" if shares_heads(node) else "keys and values differ in heads")
    turned = edit.only_reader(node.outputs[0])
    if turned is None or attribute_of(turned, "perm", None) != PERM:
        reason = "the result is not only transposed to rows"
    if reason or turned is None:
        return why(reason, node)
    op_type = provide_variant(bodies, _BSHD, node)
    if op_type is None:
        return why("the model's attention has another body", node)
    rows = [tensor.inputs[0].inputs[0] for tensor in node.inputs[:3]]
    names = ("scale", "is_causal", "causal_alignment")
    attributes = {name: node.attrs[name] for name in names if name in node.attrs}
    mask = input_of(node, _MASK)
    inputs = rows if mask is None else [*rows, mask]
    edit.become(turned, op_type, inputs, domain=STANDARD_DOMAIN, **attributes, version=1)
    edit.remove(node)
    return True
