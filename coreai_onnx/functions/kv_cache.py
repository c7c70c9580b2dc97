"""The body of ``kv_cache_update``: the rows of the update scattered into the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from coreai_onnx.functions.body import BodyBuilder
from coreai_onnx.functions.trace import Example
from coreai_onnx.lower.values import Value, ir_dtype

SCATTER_SINCE = 24
"""The first opset with TensorScatter, which is this op for caches."""


def write(
    b: BodyBuilder, examples: Sequence[Example | None], attributes: Mapping[str, Any]
) -> Value:
    """Write the body; see :mod:`coreai_onnx.composite_ops.kv_cache_update`."""
    del examples, attributes
    op, (cache, update, position) = b.op, b.inputs[:3]
    batch, heads, length = (op.Shape(update, start=i, end=i + 1) for i in range(3))
    start = op.Cast(position, to=int(ir_dtype(torch.int64)))
    if b.opset >= SCATTER_SINCE:
        places = op.Expand(start, batch)
        scattered: Value = op.TensorScatter(cache, update, places, axis=2)
        return scattered
    steps = op.Range(0, op.Squeeze(length, [0]), 1)
    token = op.Add(op.Reshape(start, [-1, 1, 1]), steps)
    head = op.Reshape(op.Range(0, op.Squeeze(heads, [0]), 1), [-1, 1])
    row = op.Reshape(op.Range(0, op.Squeeze(batch, [0]), 1), [-1, 1, 1])
    shape = op.Concat(batch, heads, length, axis=0)
    indices = [op.Unsqueeze(op.Expand(x, shape), [3]) for x in (row, head, token)]
    result: Value = op.ScatterND(cache, op.Concat(*indices, axis=3), update)
    return result
