"""Sums, products, quotients and powers, with torch's type promotion."""

from __future__ import annotations

from coreai_onnx.lower.builder import OpBuilder
from coreai_onnx.lower.promotion import promote
from coreai_onnx.lower.registry import lowers
from coreai_onnx.lower.values import Number, Value, is_bool


@lowers("aten.add.Tensor", "aten.add.Scalar")
def add(op: OpBuilder, self: Value, other: Value | Number, *, alpha: Number = 1) -> Value:
    """self + alpha * other; on booleans, or."""
    self, other = promote(op, self, other)
    if is_bool(self):
        return op.Or(self, other)
    return op.Add(self, other if alpha == 1 else op.Mul(other, alpha))
