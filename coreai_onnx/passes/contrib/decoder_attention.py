"""Turns the attention of decoders without padding into onnxruntime's GroupQueryAttention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coreai_onnx.model.inventory import CONTRIB_DOMAIN
from coreai_onnx.passes.analysis.affine import AffineExpr, AffineMask, AffineTensor, affine_expr
from coreai_onnx.passes.analysis.attention_bodies import NAME, become_heads, side_by_side
from coreai_onnx.passes.analysis.contract_facts import Tokens, positions_of, tokens_of
from coreai_onnx.passes.contrib.cached_keys import Joined, joined
from coreai_onnx.passes.contrib.rotary_tables import RotaryTables, rotation_of
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.graphs import context_of
from coreai_onnx.passes.engine.match import (
    attribute_of,
    dtype_of,
    input_of,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why
from coreai_onnx.targets.contrib import contrib_since
from coreai_onnx.targets.releases import text_of

_OP = "GroupQueryAttention"
_FLOAT32, _FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)
_INT32 = 6
_SINKS = 11
"""The op's input for one logit per head that attends to nothing."""


@dataclass(frozen=True)
class _Attention:
    """An attention that the op computes.

    Attributes:
        node: The call.
        keys: Its keys, of the cache and new.
        values: Its values.
        heads: The number of heads of queries.
        window: How many keys a query attends to, with its own; 0 for all.
        sinks: ``[heads]``, or None.
    """

    node: gs.Node
    keys: Joined
    values: Joined
    heads: int
    window: int
    sinks: gs.Tensor | None

    @property
    def forms(self) -> dict[str, Any]:
        """The attributes that other releases compute differently."""
        return {"local_window_size": self.window} if self.window else {}


@dataclass(frozen=True)
class _Kernel:
    """What a provider's kernel of the op computes.

    Attributes:
        dtypes: The dtypes of queries, keys and values.
        has_softcap: Whether it bounds the scores; WebGPU's ignores the attribute (seen in 1.27).
    """

    dtypes: tuple[np.dtype, ...]
    has_softcap: bool = True


@rewrites("Softmax", composites=(NAME,))
def contrib_decoder_attention(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Attention over a cache, in a decoder without padding → GroupQueryAttention with rotations.

    rope(q, cos, sin), Concat(past:[b, h, p, d], rope(k, cos, sin)) → keys, attention(q, keys, …)
    becomes     GroupQueryAttention(q:[b, s, h * d], k, v, past, …, cosines, sines) → y, keys, …

    Only where the contract of the file says that there is no padding. The op then reads the number
    of tokens from the attention mask, and the angles of all positions are constants. A window, a
    soft cap and sinks are the op's own; rotations by angles that depend on more than the position
    stay before it.
    """
    return _rewritten(edit, node, why, _Kernel((_FLOAT32, _FLOAT16)))


@rewrites("Softmax", composites=(NAME,))
def webgpu_decoder_attention(edit: Edit, node: gs.Node, why: Why) -> bool:
    """As contrib_decoder_attention → the op as WebGPU has it: without a soft cap.

    attention(q, Concat(past, k), …)     becomes     GroupQueryAttention(q, k, v, past, …)
    """
    return _rewritten(edit, node, why, _Kernel((_FLOAT32, _FLOAT16), has_softcap=False))


@rewrites("Softmax", composites=(NAME,))
def cuda_decoder_attention(edit: Edit, node: gs.Node, why: Why) -> bool:
    """As contrib_decoder_attention → the op as CUDA has it: in float16.

    attention(q, Concat(past, k), …)     becomes     GroupQueryAttention(q, k, v, past, …)
    """
    return _rewritten(edit, node, why, _Kernel((_FLOAT16,)))


def _rewritten(edit: Edit, node: gs.Node, why: Why, kernel: _Kernel) -> bool:
    contract = context_of(edit.graph).contract
    tokens = edit.once(tokens_of, edit.graph)
    if contract is None:
        return False
    if tokens is None:
        return why("the contract of the file allows padding on the left", node)
    if node.op == "Softmax":
        rank = len(shape_of(node.inputs[0]) or ())
        return rank == 4 and why("attention is written with products and a Softmax", node)
    found = _read(edit, node, tokens, kernel)
    if isinstance(found, str):
        return why(found, node)
    oldest, inputs = context_of(edit.graph).oldest, _SINKS + 1 if found.sinks is not None else 7
    since = contrib_since(_OP, found.forms, inputs)
    if oldest is not None and since > oldest:
        return why(f"a window or sinks need onnxruntime {text_of(since)}", node)
    edit.once(_DecoderAttentionWriter, edit, tokens, contract.max_positions).write(found, why)
    return True


def _read(edit: Edit, node: gs.Node, tokens: Tokens, kernel: _Kernel) -> _Attention | str:
    """Return an attention, or why the op does not compute it."""
    keys, values = (joined(tensor, node, edit) for tensor in node.inputs[1:3])
    if keys is None or values is None:
        return "keys and values are not those of a cache that this attention alone reads"
    shapes = [shape_of(tensor) for tensor in (node.inputs[0], keys.new, values.new)]
    if any(shape is None or len(shape) != 4 for shape in shapes):
        return "the dims are not known"
    query, new, value = (shape or () for shape in shapes)
    sizes = (*query[1::2], *new[1::2], *value[1::2])
    if not all(isinstance(size, int) for size in sizes):
        return "heads and their sizes are not known"
    if not query[3] == new[3] == value[3] or new[1] != value[1]:
        return "values must have the size of the keys"
    if int(query[3] or 0) % 8:
        return "head_dim must be a multiple of 8"
    if {affine_expr(shape[2]) for shape in (query, new, value)} != {tokens.queries}:
        return "there must be a query and a key for each new token"
    if dtype_of(node.inputs[0]) not in kernel.dtypes:
        return f"the dtype is not {' or '.join(dtype.name for dtype in kernel.dtypes)}"
    if attribute_of(node, "softcap", 0.0) and not kernel.has_softcap:
        return "the kernel has no soft cap"
    positions = edit.once(positions_of, edit.graph)
    if not all(_follows(part, tokens, positions) for part in (keys, values)):
        return "the new tokens are not known to follow those of the cache"
    mask = input_of(node, 3)
    window = _window(node, mask, positions.of(mask) if mask is not None else None, tokens)
    if window is None:
        return "the mask is not known to be causal"
    return _Attention(node, keys, values, int(query[1] or 0), window, input_of(node, 4))


def _follows(part: Joined, tokens: Tokens, positions: Any) -> bool:
    """Whether the new keys or values have the places after those of the tokens before."""
    if part.begin is None:
        return affine_expr((shape_of(part.past) or (None,) * 4)[2]) == tokens.past
    begin = positions.of(part.begin)
    return isinstance(begin, AffineTensor) and not any(begin.steps) and begin.start == tokens.past


def _window(node: gs.Node, mask: gs.Tensor | None, rule: Any, tokens: Tokens) -> int | None:
    """Return the number of keys that a query attends to, 0 for all up to its own; None if others.

    Masks are true where ``key - query <= past``, and with a window where
    ``query - key <= window - 1 - past``.
    """
    if mask is None:
        aligned = attribute_of(node, "causal_alignment", "lower_right") == "lower_right"
        is_causal = aligned and bool(attribute_of(node, "is_causal", 0))
        return int(attribute_of(node, "window_size", 0)) if is_causal else None
    if not isinstance(rule, AffineMask):
        return None
    window, is_causal, lead = 0, False, (0,) * (len(rule.dims) - 2)
    for constraint in rule.constraints:
        steps, start = constraint.steps, constraint.start
        if steps == (*lead, -1, 1) and start == tokens.past * -1:
            is_causal = True
        elif steps == (*lead, 1, -1) and (size := tokens.past - start + 1).int_value is not None:
            window = min(window or size.constant, size.constant)
        # Keys of a capacity that no token has written yet, which are after each query.
        elif steps != (*lead, 0, 1) or start != AffineExpr(1) - tokens.queries - tokens.past:
            return None
    return window if is_causal and window >= 0 else None


class _DecoderAttentionWriter:
    """Writes the ops; lengths and angles are shared by all layers."""

    def __init__(self, edit: Edit, tokens: Tokens, max_positions: int | None) -> None:
        self._edit, self._tokens = edit, tokens
        self._lengths: list[gs.Tensor] = []
        self._tables = RotaryTables(edit, tokens.positions, max_positions)

    def write(self, found: _Attention, why: Why) -> None:
        """Replace an attention; a rotation that stays is a near miss."""
        edit, node, keys, values = self._edit, found.node, found.keys, found.values
        batch, heads, length, size = node.inputs[0].shape
        sources: list[gs.Tensor] = [node.inputs[0], keys.new]
        tables: list[gs.Tensor] = []
        attrs: dict[str, Any] = {}
        queries, new_keys = (rotation_of(tensor) for tensor in sources)
        if queries is not None and new_keys is not None:
            found_tables = self._tables.of(queries, new_keys)
            if isinstance(found_tables, str):
                why(found_tables, node)
            else:
                tables, sources = list(found_tables), [queries.source, new_keys.source]
                attrs = {"do_rotary": 1, "rotary_interleaved": queries.interleaved}
        rows = [side_by_side(edit, tensor, node) for tensor in (*sources, values.new)]
        inputs = [*rows, keys.past, values.past, *self._sizes(node), *tables]
        if found.sinks is not None:
            inputs += [gs.Variable.empty() for _ in range(_SINKS - len(inputs))]
            inputs.append(found.sinks)
        attrs |= {"num_heads": heads, "kv_num_heads": keys.new.shape[1]} | found.forms
        softcap = attribute_of(node, "softcap", 0.0)
        attrs |= {"softcap": softcap} if softcap else {}
        if attribute_of(node, "scale", None) is not None:
            attrs["scale"] = node.attrs["scale"]
        # The op returns the joined keys and values, which are the next cache.
        for part in (keys, values):
            edit.remove(part.concat)
        wide = gs.Variable(
            context_of(edit.graph).names.claim(f"{node.outputs[0].name}_row"),
            node.inputs[0].dtype,
            [batch, length, heads * size],
        )
        outputs = [wide, keys.whole, values.whole]
        edit.node(_OP, node, inputs, outputs=outputs, domain=CONTRIB_DOMAIN, **attrs)
        become_heads(edit, node, wide, heads)

    def _sizes(self, node: gs.Node) -> list[gs.Tensor]:
        """Return the last position of each row, and the number of tokens, in int32.

        They are read from the mask, as in the files of onnxruntime-genai's builder.
        """
        if not self._lengths:
            edit, mask = self._edit, self._tokens.mask
            last = edit.constant("tokens_axis", np.array([1], np.int64))
            first = edit.constant("tokens_first", np.array([0], np.int64))
            one = edit.constant("tokens_one", np.array(1, np.int64))
            integer, rows = np.dtype(np.int64), list(mask.shape[:1])
            count = edit.add("ReduceSum", node, [mask, last], integer, rows, keepdims=0)
            place = edit.add("Sub", node, [count, one], integer, rows)
            total = edit.add("Shape", node, [mask], integer, [1], start=1, end=2)
            whole = edit.add("Squeeze", node, [total, first], integer, [])
            self._lengths = [edit.add("Cast", node, [x], to=_INT32) for x in (place, whole)]
        return self._lengths
