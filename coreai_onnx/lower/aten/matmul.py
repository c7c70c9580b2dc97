"""Matrix products."""

from __future__ import annotations

from coreai_onnx.lower.builder import OpBuilder
from coreai_onnx.lower.registry import lowers
from coreai_onnx.lower.values import Value


@lowers("aten.linear.default")
def linear(op: OpBuilder, input: Value, weight: Value, bias: Value | None = None) -> Value:
    """input @ weightᵀ + bias."""
    product = op.MatMul(input, op.transpose(weight, [1, 0]))
    return product if bias is None else op.Add(product, bias)
