"""Turns the attention of decoders without padding into onnxruntime's GroupQueryAttention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coreai_onnx.model.inventory import CONTRIB_DOMAIN
from coreai_onnx.passes.analysis.affine import AffineExpr, AffineMask, AffineTensor, affine_expr
from coreai_onnx.passes.analysis.attention_bodies import NAME, become_heads, side_by_side
from coreai_onnx.passes.analysis.contract_facts import Tokens, positions_of, tokens_of
from coreai_onnx.passes.contrib.attention_forms import AttentionForm, attention_form
from coreai_onnx.passes.contrib.cached_keys import Joined, joined
from coreai_onnx.passes.contrib.rotary_tables import RotaryTables, rotation_of
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.graphs import context_of
from coreai_onnx.passes.engine.match import (
    attribute_of,
    dtype_of,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why
from coreai_onnx.targets.contrib import contrib_since
from coreai_onnx.targets.releases import text_of

_OP = "GroupQueryAttention"
_FLOAT32, _FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)
_INT32 = 6
_TOTAL, _BIAS, _SINKS = 6, 10, 11
"""The op's inputs for the number of tokens, what is added to the scores, and one logit per head
that attends to nothing."""


@dataclass(frozen=True)
class _Attention:
    """An attention that the op computes.

    Attributes:
        form: How it is written.
        keys: Its keys, of the cache and new.
        values: Its values.
        heads: The number of heads of queries.
        window: How many keys a query attends to, with its own; 0 for all.
    """

    form: AttentionForm
    keys: Joined
    values: Joined
    heads: int
    window: int

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes that other releases compute differently."""
        return {"local_window_size": self.window} if self.window else {}

    @property
    def inputs(self) -> int:
        """The number of inputs that other releases may not have."""
        last = [
            _TOTAL,
            *([_BIAS] if self.form.bias else []),
            *([_SINKS] if self.form.sinks else []),
        ]
        return last[-1] + 1


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
    soft cap, sinks and a bias of positions are the op's own; rotations by angles that depend on
    more than the position stay before it. Attention may be products around a Softmax as well.
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
    if node.op == "Softmax" and len(shape_of(node.inputs[0]) or ()) != 4:
        return False
    form = attention_form(node)
    reading = form if isinstance(form, str) else _read(edit, form, tokens, kernel)
    if isinstance(reading, str):
        return why(reading, node)
    since = contrib_since(_OP, reading.attributes, reading.inputs)
    oldest = context_of(edit.graph).oldest
    if oldest is not None and since > oldest:
        return why(f"a window, a bias or sinks need onnxruntime {text_of(since)}", node)
    edit.once(_DecoderAttentionWriter, edit, tokens, contract.max_positions).write(reading, why)
    return True


def _read(edit: Edit, form: AttentionForm, tokens: Tokens, kernel: _Kernel) -> _Attention | str:
    """Return an attention, or why the op does not compute it."""
    keys, values = (joined(*part, edit) for part in (form.keys, form.values))
    if keys is None or values is None:
        return "keys and values are not those of a cache that this attention alone reads"
    shapes = [shape_of(tensor) for tensor in (form.query, keys.new, values.new)]
    if any(shape is None or len(shape) != 4 for shape in shapes):
        return "the dims are not known"
    query, new, value = (shape or () for shape in shapes)
    sizes = (*query[1::2], *new[1::2], *value[1::2])
    if not all(isinstance(size, int) for size in sizes):
        return "heads and their sizes are not known"
    if not query[3] == new[3] == value[3] or new[1] != value[1]:
        return "values must have the size of the keys"
    # GroupQueryAttention refuses heads of other sizes.
    if int(query[3] or 0) % 8:
        return "head_dim must be a multiple of 8"
    if {affine_expr(shape[2]) for shape in (query, new, value)} != {tokens.queries}:
        return "there must be a query and a key for each new token"
    if dtype_of(form.query) not in kernel.dtypes:
        return f"the dtype is not {' or '.join(dtype.name for dtype in kernel.dtypes)}"
    if form.softcap and not kernel.has_softcap:
        return "the kernel has no soft cap"
    positions = edit.once(positions_of, edit.graph)
    if not all(_follows(part, tokens, positions) for part in (keys, values)):
        return "the new tokens are not known to follow those of the cache"
    window = _window(form, positions.of(form.mask) if form.mask is not None else None, tokens)
    if window is None:
        return "the mask is not known to be causal"
    if form.bias is not None and keys.begin is not None:
        return "a bias has columns for a cache of a fixed capacity"
    return _Attention(form, keys, values, int(query[1] or 0), window)


def _follows(part: Joined, tokens: Tokens, positions: Any) -> bool:
    """Whether the new keys or values have the places after those of the tokens before."""
    if part.begin is None:
        return affine_expr((shape_of(part.past) or (None,) * 4)[2]) == tokens.past
    begin = positions.of(part.begin)
    return isinstance(begin, AffineTensor) and not any(begin.steps) and begin.start == tokens.past


def _window(form: AttentionForm, rule: Any, tokens: Tokens) -> int | None:
    """Return the number of keys that a query attends to, 0 for all up to its own; None if others.

    Masks are true where ``key - query <= past``, and with a window where
    ``query - key <= window - 1 - past``.
    """
    node = form.node
    if form.mask is None:
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
        edit, form, keys, values = self._edit, found.form, found.keys, found.values
        node = form.node
        batch, heads, length, size = form.query.shape
        sources: list[gs.Tensor] = [form.query, keys.new]
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
        inputs += [gs.Variable.empty() for _ in range(found.inputs - len(inputs))]
        if form.bias is not None:
            inputs[_BIAS] = self._bias(form)
        if form.sinks is not None:
            inputs[_SINKS] = self._sinks(form)
        attrs |= {"num_heads": heads, "kv_num_heads": keys.new.shape[1]} | found.attributes
        attrs |= {"softcap": form.softcap} if form.softcap else {}
        attrs |= {} if form.scale is None else {"scale": form.scale}
        # The op returns the joined keys and values, which are the next cache.
        for part in (keys, values):
            edit.remove(part.concat)
        wide = gs.Variable(
            context_of(edit.graph).names.claim(f"{node.outputs[0].name}_row"),
            form.query.dtype,
            [batch, length, heads * size],
        )
        outputs = [wide, keys.whole, values.whole]
        edit.node(_OP, node, inputs, outputs=outputs, domain=CONTRIB_DOMAIN, **attrs)
        become_heads(edit, node, wide, heads)

    def _bias(self, form: AttentionForm) -> gs.Tensor:
        """Return the bias as ``[1, heads, queries, keys]``."""
        edit, node, bias = self._edit, form.node, form.bias
        assert bias is not None
        heads = form.query.shape[1]
        lead = edit.constant(f"{bias.name}_lead", np.array([1, heads], np.int64))
        integer = np.dtype(np.int64)
        rows = edit.add("Shape", node, [form.query], integer, [1], start=2, end=3)
        columns = edit.add("Shape", node, [self._tokens.mask], integer, [1], start=1, end=2)
        sizes = edit.add("Concat", node, [lead, rows, columns], integer, [4], axis=0)
        return edit.add("Expand", node, [bias, sizes], bias.dtype)

    def _sinks(self, form: AttentionForm) -> gs.Tensor:
        """Return the sinks as ``[heads]``."""
        sinks = form.sinks
        assert sinks is not None
        if len(sinks.shape) == 1:
            return sinks
        flat = self._edit.constant(f"{sinks.name}_flat", np.array([-1], np.int64))
        return self._edit.add(
            "Reshape", form.node, [sinks, flat], sinks.dtype, [form.query.shape[1]]
        )

    def _sizes(self, node: gs.Node) -> list[gs.Tensor]:
        """Return the last position of each row, and the number of tokens, in int32.

        They are read from the mask, as in the files of onnxruntime-genai's builder.
        """
        if not self._lengths:
            edit, mask = self._edit, self._tokens.mask
            last = edit.constant("tokens_axis", np.array([1], np.int64))
            first = edit.constant("tokens_first", np.array([0], np.int64))
            one = edit.constant("tokens_one", np.array(1, np.int32))
            integer, narrow, rows = np.dtype(np.int64), np.dtype(np.int32), list(mask.shape[:1])
            # WebGPU has kernels for int32 only.
            tokens = edit.add("Cast", node, [mask], narrow, mask.shape, to=_INT32)
            count = edit.add("ReduceSum", node, [tokens, last], narrow, rows, keepdims=0)
            place = edit.add("Sub", node, [count, one], narrow, rows)
            total = edit.add("Shape", node, [mask], integer, [1], start=1, end=2)
            whole = edit.add("Squeeze", node, [total, first], integer, [])
            self._lengths = [place, edit.add("Cast", node, [whole], narrow, [], to=_INT32)]
        return self._lengths
