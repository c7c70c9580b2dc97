"""Softmax in its variants, dropout, and attention."""

from __future__ import annotations

from typing import Any

import torch

from coreai_onnx.lower.nodes.attention_call import call_attention
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.promotion import promote_to_float
from coreai_onnx.lower.nodes.values import Value, dims_of, dtype_of, rank_of, wrap
from coreai_onnx.lower.walk.registry import lowers

_LOG = ("aten.log_softmax.int", "aten._log_softmax.default", "aten.special_log_softmax.default")


@lowers("aten.softmax.int", "aten._softmax.default", "aten.special_softmax.default")
@lowers(*_LOG, op_type="LogSoftmax")
def softmax(
    op: OpBuilder,
    self: Value,
    dim: int,
    dtype: torch.dtype | None = None,
    *,
    half_to_float: bool = False,
    op_type: str = "Softmax",
) -> Value:
    """exp(x) / sum(exp(x)) along an axis, or its logarithm, in ``dtype`` if given."""
    dtype = torch.float32 if half_to_float else dtype
    (x,) = promote_to_float(op, self) if dtype is None else [op.cast(self, dtype)]
    if rank_of(x) > 0:
        if op_type == "LogSoftmax" and op.keeps(x):
            return op.composite("log_softmax", [x], axis=wrap(dim, rank_of(x)))
        return op.node(op_type, x, axis=dim)
    return op.reshape(op.node(op_type, op.reshape(x, [1]), axis=0), [])


@lowers("aten._safe_softmax.default")
def _safe_softmax(op: OpBuilder, self: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    """Softmax along an axis; zeros if all elements are -inf."""
    share = softmax(op, self, dim, dtype)
    wide = op.cast(self, dtype_of(share))
    if rank_of(self) == 0:
        return op.Where(op.Equal(wide, float("-inf")), 0.0, share)
    largest = op.ReduceMax(wide, op.const([dim]), keepdims=1)
    return op.Where(op.Equal(largest, float("-inf")), 0.0, share)


# ---------------------------------------------------------------- dropout
@lowers("aten.dropout.default")
def dropout(op: OpBuilder, input: Value, p: float, *, train: bool) -> Value:
    """The input; in training mode, with a fraction p of the elements zero, the others scaled."""
    return _dropout(op, input, p)[0] if train and p > 0 else input


@lowers("aten.native_dropout.default")
def native_dropout(
    op: OpBuilder, input: Value, p: float, *, train: bool | None
) -> tuple[Value, Value]:
    """Dropout, and the mask of the elements that are kept."""
    if train is not False and p > 0:
        return _dropout(op, input, p)
    return input, op.expand(op.const(True), dims_of(input))


def _dropout(op: OpBuilder, x: Value, p: float) -> tuple[Value, Value]:
    if p >= 1:
        # The ratio of Dropout must be below 1.
        return op.Mul(x, 0.0), op.expand(op.const(False), dims_of(x))
    result, mask = op.Dropout(x, op.const(p, torch.float32), op.const(True), _outputs=2)
    return result, mask


# ---------------------------------------------------------------------- attention
@lowers("aten._scaled_dot_product_flash_attention_for_cpu.default", enable_gqa=True)
@lowers("aten.scaled_dot_product_attention.default", whole=True)
def scaled_dot_product_attention(
    op: OpBuilder,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """The composite of the same name; causal alignment is upper left, as in torch."""
    tensors = query, key, value
    # torch's decomposition handles dropout and vectors, which the composite does not.
    if dropout_p or not op.keeps(*tensors) or min(rank_of(x) for x in tensors) < 2:
        return NotImplemented
    causal = is_causal and attn_mask is None
    attributes = {
        "scale": scale,
        "is_causal": int(causal),
        "causal_alignment": "upper_left" if causal else "lower_right",
    }
    return call_attention(op, [*tensors, attn_mask], attributes, grouped=enable_gqa)
