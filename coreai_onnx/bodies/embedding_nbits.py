"""The bodies of lookups in few-bit tables: rows are selected first, then unpacked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from coreai_onnx.bodies.body import BodyBuilder
from coreai_onnx.bodies.few_bits import dequantized, few_bits_words
from coreai_onnx.bodies.writers import Examples, writes
from coreai_onnx.lower.build.values import Value


@writes("embedding_nbits", words=few_bits_words)
def embedding_nbits(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Value:
    """Write the body; see :func:`coreai_onnx.composites.few_bits.embedding_nbits`."""
    del examples
    op, wide = b.op, torch.float64 if b.dtype == torch.float64 else torch.float32
    scales, codes, indices = b.inputs[:3]
    zeros = b.given("zero_points")
    values = dequantized(
        op,
        op.Gather(codes, indices, axis=0),
        op.Gather(scales, indices, axis=0),
        None if zeros is None else op.Gather(zeros, indices, axis=0),
        b.given("palette"),
        int(attributes["bits"]),
        wide,
    )
    columns = op.ReduceProd(op.Shape(values, start=-2))
    rows = op.Reshape(values, op.Concat(op.Shape(indices), columns, axis=0), allowzero=1)
    return op.CastLike(rows, scales)
