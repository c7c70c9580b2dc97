"""Decompositions that replace those of torch, which return something other than their op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from coreai_onnx.composites.attention import position_mask
from coreai_onnx.export.compat.torch_names import core_aten_decompositions
from coreai_onnx.lower.nodes.values import compute_dtype

aten = torch.ops.aten
_FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001 - an op


def flash_attention_for_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 - the op's schema
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention and the logsumexp of its scores.

    torch's decomposition returns the weights ``[batch, heads, queries, keys]`` as the second
    result. The op returns ``[batch, heads, queries]`` in float32 (float64 for float64), zero for a
    query that attends to no key.
    """
    output, _ = core_aten_decompositions()[_FLASH](
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )
    wide = compute_dtype(query.dtype)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    # Keys may have fewer heads than queries, each for a group of them.
    keys = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query.to(wide) @ keys.to(wide).transpose(-2, -1) * factor
    if attn_mask is not None:
        scores = scores + attn_mask.to(wide)
    if is_causal:
        mask = position_mask(query.shape[2], key.shape[2], 1, 0, "upper_left")
        assert mask is not None
        scores = scores.masked_fill(~mask, float("-inf"))
    sums = torch.logsumexp(scores, -1)
    return output, sums.masked_fill(sums == float("-inf"), 0.0)


CORRECTED: dict[Any, Callable[..., Any]] = {_FLASH: flash_attention_for_cpu}
"""Decompositions by op."""
