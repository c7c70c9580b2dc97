"""Replaces attention that is not causal, with grouped heads, with GroupQueryAttention."""

from __future__ import annotations

from coreai_onnx.passes.contrib.attention import write_attentions
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.why import Why


def contrib_open_attention(graph: gs.Graph, why: Why) -> int:
    """Attention that is not causal, with grouped or rotated heads → GroupQueryAttention.

    ai.coreai::scaled_dot_product_attention(q:[b, h, s, d], k:[b, h / 4, s, d], v) → y
    becomes     GroupQueryAttention<causal = 0>(q:[b, s, h * d], k, v) → y:[b, s, h * d]

    This pass is separate from the other attentions because onnxruntime supports it from 1.30 on.
    """
    return write_attentions(graph, why, open_groups=True)
