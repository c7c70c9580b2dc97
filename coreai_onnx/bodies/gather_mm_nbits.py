"""The body of gathered products with few-bit weights: the matrices that have rows are unpacked.

Unlike the weight of one product, the weights of experts are not unpacked when onnxruntime loads a
model: they are most of a model, and a token needs few of them. Each run unpacks the matrices that
an index selects, one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from coreai_onnx.bodies.body import BodyBuilder, always_cast
from coreai_onnx.bodies.few_bits import dequantized, few_bits_words, rounded
from coreai_onnx.bodies.gather_mm import Matrices, grouped
from coreai_onnx.bodies.writers import Examples, writes
from coreai_onnx.lower.build.builder import OpBuilder
from coreai_onnx.lower.build.scope import AttributeRef
from coreai_onnx.lower.build.values import Value

_GROUP = AttributeRef("group_size", "int")


@writes("gather_mm_nbits", words=few_bits_words)
def gather_mm_nbits(b: BodyBuilder, examples: Examples, attributes: Mapping[str, Any]) -> Value:
    """Write the body; see :func:`coreai_onnx.composites.few_bits.gather_mm_nbits`."""
    del examples
    op, wide = b.op, torch.float64 if b.dtype == torch.float64 else torch.float32
    lhs, codes, scales, indices = b.inputs[:4]
    zeros, palette = b.given("zero_points"), b.given("palette")
    count, width = op.Shape(codes, start=0, end=1), op.Shape(codes, start=1, end=2)
    depth, bits = op.Shape(lhs, start=-1), int(attributes["bits"])
    chosen = op.Gather(op.Range(0, op.Squeeze(count, [0]), 1), indices, axis=0)
    x = always_cast(op, lhs, wide)
    if attributes["activation_bits"]:
        group = op.Unsqueeze(b.scope.attribute(_GROUP), [0])
        x = rounded(op, x, op.Concat(op.Shape(codes, start=2, end=3), group, axis=0))

    def product(inner: OpBuilder, rows: Value, which: Value) -> Value:
        steps, factors = (inner.Gather(part, which, axis=0) for part in (codes, scales))
        own_zeros = None if zeros is None else inner.Gather(zeros, which, axis=0)
        matrix = dequantized(inner, steps, factors, own_zeros, palette, bits, wide)
        flat = inner.Reshape(matrix, inner.Concat(width, depth, axis=0), allowzero=1)
        return inner.MatMul(rows, inner.Transpose(flat, perm=[1, 0]))

    return op.CastLike(grouped(op, x, Matrices(chosen, count, width, product, wide)), lhs)
