"""The bodies of attention to tensors, written with ONNX nodes.

Tracing the reference over symbolic sizes takes seconds, since every reshape of a five-dimensional
tensor evaluates strides in sympy; this takes milliseconds. Head groups are multiplied as taller
matrices, so that keys and values are read once per group. Tests compare it with the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import onnx_ir as ir
import torch

from coreai_onnx.bodies.body import BodyBuilder, Variant, always_cast
from coreai_onnx.bodies.trace import Example
from coreai_onnx.bodies.writers import writes
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value
from coreai_onnx.targets.defects import LOWEST, LOWEST_SCORE

_PERM = [0, 2, 1, 3]
NATIVE_SINCE = 23
"""The first opset with Attention."""


@dataclass(frozen=True)
class AttentionCall:
    """The variant of a body.

    Attributes:
        mask: ``"bool"``, ``"float"`` or empty.
        sinks: Whether there is a column of attention sinks.
        causal: Whether keys after the query's position are masked.
        window: Size of the attention window; 0 for no window.
        upper_left: Whether the diagonal of the causal mask starts in the upper left corner.
        softcap: Bound of the scores; 0 for none.
        wide: Dtype of the computation.
        one_group: Whether keys and values have the same number of heads.
    """

    mask: str
    sinks: bool
    causal: bool
    window: int
    upper_left: bool
    softcap: float
    wide: torch.dtype
    one_group: bool

    @property
    def positional(self) -> bool:
        """Whether the positions imply a mask."""
        return not self.mask and (self.causal or self.window > 0)


class AttentionTensors(NamedTuple):
    """The inputs of attention; keys and values are ``[B, H, S, D]``."""

    query: Value
    key: Value
    value: Value
    mask: Value | None
    sinks: Value | None


def call_of(b: BodyBuilder) -> AttentionCall:
    """Return the variant of a body of attention to tensors or to blocks."""
    inputs, attributes = b.variant.inputs, b.attributes
    mask = inputs.get("attn_mask")
    return AttentionCall(
        mask="" if mask is None else ("bool" if mask.dtype == torch.bool else "float"),
        sinks="sinks" in inputs,
        causal=bool(attributes.get("is_causal")),
        window=max(int(attributes.get("window_size", 0)), 0),
        upper_left=attributes.get("causal_alignment") == "upper_left",
        softcap=float(attributes.get("softcap", 0.0)),
        wide=b.wide,
        one_group=_one_group(inputs),
    )


def _one_group(inputs: Mapping[str, Example]) -> bool:
    """Return whether keys and values have the same number of heads."""
    axis = 2 if "block_table" in inputs else 1
    keys, values = (
        next(inputs[name] for name in (part, f"{part}_pool", f"{part}_codes") if name in inputs)
        for part in ("key", "value")
    )
    return keys.dims[axis] == values.dims[axis]


def variant_words(variant: Variant) -> list[str]:
    """Return the words of the name of a variant of attention to tensors, blocks or codes."""
    inputs, attributes = variant.inputs, variant.attributes
    words = []
    if "attn_mask" in inputs:
        words.append("mask" if inputs["attn_mask"].dtype == torch.bool else "bias")
    elif "block_table" not in inputs:
        parts = ["causal"] if attributes["is_causal"] else []
        parts += ["window"] if attributes.get("window_size", 0) > 0 else []
        upper_left = attributes["causal_alignment"] == "upper_left"
        parts += ["upper_left"] if parts and upper_left else []
        words += ["_".join(parts)] if parts else []
    if "sinks" in inputs:
        words.append("sinks")
    elif not _one_group(inputs):
        words.append("value_heads")
    words += ["softcap"] if attributes.get("softcap", 0.0) > 0 else []
    words += ["bits4"] if attributes.get("bits") == 4 else []
    return words


@writes("scaled_dot_product_attention", words=variant_words)
def scaled_dot_product_attention(b: BodyBuilder) -> Value:
    """Write the body; see :func:`coreai_onnx.composites.attention.scaled_dot_product_attention`."""
    query, key, value = b.inputs[:3]
    tensors = AttentionTensors(query, key, value, b.input("attn_mask"), b.input("sinks"))
    return attend(b, call_of(b), tensors)


@writes("scaled_dot_product_attention_bshd", words=variant_words)
def scaled_dot_product_attention_bshd(b: BodyBuilder) -> Value:
    """Write the body between transposes; those around a call cancel them if it is inlined."""
    query, key, value = (b.op.Transpose(x, perm=_PERM) for x in b.inputs[:3])
    result = attend(b, call_of(b), AttentionTensors(query, key, value, b.input("attn_mask"), None))
    return b.op.Transpose(result, perm=_PERM)


def attend(b: BodyBuilder, call: AttentionCall, tensors: AttentionTensors) -> Value:
    """Write attention as ONNX's Attention where it fits, and in basic ops elsewhere."""
    computed = b.dtype != torch.float64  # onnxruntime has no float64 kernel of Attention
    if b.opset >= NATIVE_SINCE and computed and call.one_group and not call.sinks:
        return _as_onnx_attention(b, call, tensors)
    return _in_basic_ops(b, call, tensors)


def _as_onnx_attention(b: BodyBuilder, call: AttentionCall, tensors: AttentionTensors) -> Value:
    """Write ONNX's Attention, with a mask computed from positions, and zeros for rows without keys.

    The inputs are cast to float32: onnxruntime accumulates float16 scores in float16, and does not
    support bfloat16. The mask is expanded to all rows, since onnxruntime does not broadcast rows.
    """
    op, query, key, value, mask = b.op, tensors.query, tensors.key, tensors.value, tensors.mask
    # Without past keys, ONNX's is_causal starts the diagonal in the upper left corner, and it knows
    # no window; every other mask of positions must be a tensor.
    corner = call.causal and call.upper_left and not call.window
    if call.positional and not corner:
        mask = _position_mask(b, query, key, call)
    elif mask is not None:
        mask = mask if call.mask == "bool" else always_cast(op, mask, call.wide)
        rows, columns = op.Shape(query, start=2, end=3), op.Shape(key, start=2, end=3)
        mask = op.Expand(mask, op.Concat(rows, columns, axis=0))
        mask = mask if call.mask == "bool" else _above_lowest(op, mask)
    wide = op.Attention(
        op.cast(query, call.wide),
        op.cast(key, call.wide),
        op.cast(value, call.wide),
        mask,
        is_causal=int(corner and not call.mask),
        scale=b.ref("scale"),
        softcap=b.ref("softcap") if call.softcap > 0 else None,
    )
    if mask is not None:
        wide = _empty_rows_to_zero(op, wide, mask, call)
    return op.cast(wide, b.dtype)


def _in_basic_ops(b: BodyBuilder, call: AttentionCall, tensors: AttentionTensors) -> Value:
    """Write matrix products, one per key head, and a softmax."""
    op, query, key, value, mask = b.op, tensors.query, tensors.key, tensors.value, tensors.mask
    scale = op.cast(b.attribute("scale"), call.wide)
    scaled = op.Mul(op.cast(query, call.wide), scale)
    keys = op.Transpose(op.cast(key, call.wide), perm=[0, 1, 3, 2])
    batch, heads = op.Shape(query, start=0, end=1), op.Shape(query, start=1, end=2)
    length, lengths = op.Shape(query, start=2, end=3), op.Shape(key, start=2, end=3)
    scores = op.MatMul(_by_group(op, scaled, key, batch, heads, length), keys)
    # allowzero, because a size of 0 would otherwise mean that of the input.
    scores = op.Reshape(scores, op.Concat(batch, heads, length, lengths, axis=0), allowzero=1)
    if call.softcap > 0:
        bound = op.cast(b.attribute("softcap"), call.wide)
        scores = op.Mul(op.Tanh(op.Div(scores, bound)), bound)
    if call.positional:
        mask = _position_mask(b, query, key, call)
    if mask is not None and mask.dtype == ir.DataType.BOOL:
        scores = op.Where(mask, scores, float("-inf"))
    elif mask is not None:
        mask = always_cast(op, mask, call.wide)
        scores = op.Add(scores, mask)
    weights = _softmax(op, scores, tensors.sinks, call)
    product = op.MatMul(
        _by_group(op, weights, value, batch, heads, length), op.cast(value, call.wide)
    )
    dims = op.Concat(batch, heads, length, op.Shape(value, start=3, end=4), axis=0)
    result = op.Reshape(product, dims, allowzero=1)
    # With sinks no row is empty: the softmax always has a finite column.
    if mask is not None and not call.sinks:
        result = _empty_rows_to_zero(op, result, mask, call)
    return op.cast(result, b.dtype)


def _by_group(
    op: OpBuilder, x: Value, shared: Value, batch: Value, heads: Value, length: Value
) -> Value:
    """Return ``[B, H, T, N]`` as ``[B, K, H / K * T, N]``: rows grouped by their key head."""
    groups = op.Shape(shared, start=1, end=2)
    rows = op.Mul(op.Div(heads, groups), length)
    columns = op.Shape(x, start=3, end=4)
    return op.Reshape(x, op.Concat(batch, groups, rows, columns, axis=0), allowzero=1)


def _position_mask(b: BodyBuilder, query: Value, key: Value, call: AttentionCall) -> Value:
    """Return the bool mask ``[T, S]`` of a causal or windowed attention."""
    op = b.op
    queries = op.squeeze(op.Shape(query, start=2, end=3), [0])
    keys = op.squeeze(op.Shape(key, start=2, end=3), [0])
    position = op.Range(0, queries, 1)
    # Lower right: the last query attends to the last key, as it does behind a cache of tokens.
    if not call.upper_left:
        position = op.Add(position, op.Sub(keys, queries))
    distance = op.Sub(op.Unsqueeze(position, [1]), op.Unsqueeze(op.Range(0, keys, 1), [0]))
    window = b.attribute("window_size") if call.window else None
    parts = []
    if call.causal:
        parts.append(op.GreaterOrEqual(distance, 0))
    # Without causality the window reaches as far ahead as it reaches back.
    elif call.window:
        parts.append(op.Greater(distance, op.Neg(window)))
    if call.window:
        parts.append(op.Less(distance, window))
    return parts[0] if len(parts) == 1 else op.And(*parts)


def _softmax(op: OpBuilder, scores: Value, sinks: Value | None, call: AttentionCall) -> Value:
    """Return the softmax over the keys; sinks are one more column, dropped afterwards."""
    if sinks is None:
        return op.Softmax(scores, axis=-1)
    column = op.Unsqueeze(always_cast(op, sinks, call.wide), [0, 2, 3])
    dims = op.Concat(op.Shape(scores, start=0, end=3), op.const([1]), axis=0)
    weights = op.Softmax(op.Concat(scores, op.Expand(column, dims), axis=-1), axis=-1)
    return op.Slice(weights, [0], [-1], [3])


def _above_lowest(op: OpBuilder, mask: Value) -> Value:
    """Replace the lowest finite number, which onnxruntime treats as -inf."""
    return op.Where(op.Equal(mask, LOWEST), LOWEST_SCORE, mask)


def _empty_rows_to_zero(op: OpBuilder, result: Value, mask: Value, call: AttentionCall) -> Value:
    """Zero the rows that attend to nothing, for which softmax returns NaN or an average."""
    if mask.dtype == ir.DataType.BOOL:
        # ReduceMax accepts booleans only from opset 20 on.
        some = op.Greater(op.ReduceMax(op.cast(mask, torch.float32), [-1], keepdims=1), 0.0)
    else:
        highest = op.ReduceMax(op.cast(mask, call.wide), [-1], keepdims=1)
        some = op.Greater(highest, float("-inf"))
    zero = op.CastLike(op.const(0.0), result)
    return op.Where(some, result, zero)
