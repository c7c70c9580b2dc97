"""The bodies of caches of keys and values: attention to blocks and to codes, and updates."""

from __future__ import annotations

import numpy as np
import torch

from coreai_onnx.bodies.attention import AttentionTensors, attend, call_of, variant_words
from coreai_onnx.bodies.body import BodyBuilder, always_cast
from coreai_onnx.bodies.writers import writes
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value, ir_dtype

SCATTER_SINCE = 24
"""The first opset with TensorScatter, which is this op for caches."""


@writes("attention_nbits", words=variant_words)
def attention_nbits(b: BodyBuilder) -> Value:
    """Write the body; see :func:`coreai_onnx.composites.caches.attention_nbits`."""
    query, *codes = b.inputs[:5]
    key, value = (_dequantized(b, *codes[i : i + 2]) for i in (0, 2))
    tensors = AttentionTensors(query, key, value, b.input("attn_mask"), b.input("sinks"))
    return attend(b, call_of(b), tensors)


def _dequantized(b: BodyBuilder, codes: Value, scales: Value) -> Value:
    """Return keys or values, in the dtype of the computation."""
    op, bits = b.op, int(b.attributes["bits"])
    if bits == 4:
        mask, shift = (op.const(np.array(x, np.uint8)) for x in (15, 4))
        halves = op.BitwiseAnd(codes, mask), op.BitShift(codes, shift, direction="RIGHT")
        codes = op.Concat(*halves, axis=-1)
    values = op.Sub(always_cast(op, codes, b.wide), op.const(float(1 << (bits - 1)), b.wide))
    return op.Mul(values, op.cast(scales, b.wide))


@writes("paged_attention", words=variant_words)
def paged_attention(b: BodyBuilder) -> Value:
    """Write the body; see :func:`coreai_onnx.composites.caches.paged_attention`."""
    op, (query, key_pool, value_pool, table) = b.op, b.inputs[:4]
    key, value = (_rows_of_blocks(op, pool, table) for pool in (key_pool, value_pool))
    tensors = AttentionTensors(query, key, value, b.input("attn_mask"), b.input("sinks"))
    return attend(b, call_of(b), tensors)


@writes("paged_attention_nbits", words=variant_words)
def paged_attention_nbits(b: BodyBuilder) -> Value:
    """Write the body; see :func:`coreai_onnx.composites.caches.paged_attention_nbits`."""
    query, *pools, table = b.inputs[:6]
    codes = [_rows_of_blocks(b.op, pool, table) for pool in pools]
    key, value = (_dequantized(b, *codes[i : i + 2]) for i in (0, 2))
    tensors = AttentionTensors(query, key, value, b.input("attn_mask"), b.input("sinks"))
    return attend(b, call_of(b), tensors)


def _rows_of_blocks(op: OpBuilder, pool: Value, table: Value) -> Value:
    """Return the keys or values of each row of a table, ``[B, H, S, D]``."""
    blocks = op.Gather(pool, table, axis=0)
    batch, heads = op.Shape(table, start=0, end=1), op.Shape(pool, start=2)
    places = op.Mul(op.Shape(table, start=1), op.Shape(pool, start=1, end=2))
    dims = op.Concat(batch, places, heads, axis=0)
    # allowzero, because a size of 0 would otherwise mean that of the input.
    return op.Transpose(op.Reshape(blocks, dims, allowzero=1), perm=[0, 2, 1, 3])


@writes("kv_cache_update")
def kv_cache_update(b: BodyBuilder) -> Value:
    """Write the body; see :mod:`coreai_onnx.composites.caches`.

    ``passes/fuse_cache_updates.py`` writes the same body, so that a model needs only one.
    ScatterElements would need fewer nodes, but an index per element, which takes up to eleven times
    as long (docs/internals/performance_log.md).
    """
    op, (cache, update, position) = b.op, b.inputs[:3]
    integer = int(ir_dtype(torch.int64))
    if b.opset >= SCATTER_SINCE:
        # TensorScatter requires a position per batch entry; calls may pass one for all of them.
        rows = op.Expand(op.Cast(position, to=integer), op.Shape(update, start=0, end=1))
        return op.TensorScatter(cache, update, rows, axis=2)
    batch, heads, length = (op.Shape(update, start=i, end=i + 1) for i in range(3))
    row, head, step = (op.Range(0, op.Squeeze(x, [0]), 1) for x in (batch, heads, length))
    start = op.Reshape(op.Cast(position, to=integer), [-1, 1, 1, 1])
    token = op.Add(start, op.Reshape(step, [-1, 1]))
    shape = op.Concat(batch, heads, length, op.const([1]), axis=0)
    places = (op.Reshape(row, [-1, 1, 1, 1]), op.Reshape(head, [-1, 1, 1]), token)
    indices = op.Concat(*(op.Expand(x, shape) for x in places), axis=3)
    return op.ScatterND(cache, indices, update)
