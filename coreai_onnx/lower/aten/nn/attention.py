"""Attention: the composite, or torch's decomposition."""

from __future__ import annotations

from typing import Any

from coreai_onnx.lower.nodes.attention_call import call_attention
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value, rank_of
from coreai_onnx.lower.walk.registry import lowers


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
