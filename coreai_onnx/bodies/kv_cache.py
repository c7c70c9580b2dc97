"""The body of ``kv_cache_update``: the rows of the update scattered into the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from coreai_onnx.bodies.body import BodyBuilder
from coreai_onnx.bodies.trace import Example
from coreai_onnx.bodies.writers import writes
from coreai_onnx.lower.build.values import Value, ir_dtype

SCATTER_SINCE = 24
"""The first opset with TensorScatter, which is this op for caches."""


@writes("kv_cache_update")
def write(
    b: BodyBuilder, examples: Sequence[Example | None], attributes: Mapping[str, Any]
) -> Value:
    """Write the body; see :mod:`coreai_onnx.composites.attention`.

    ``passes/fuse_cache_updates.py`` writes the same body, so that a model needs only one.
    ScatterElements would need fewer nodes, but an index per element, which takes up to eleven times
    as long (docs/internals/performance_log.md).
    """
    del examples, attributes
    op, (cache, update, position) = b.op, b.inputs[:3]
    integer = int(ir_dtype(torch.int64))
    if b.opset >= SCATTER_SINCE:
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
