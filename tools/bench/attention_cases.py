"""Cases of attention: prefill, masks, windows, vision and decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from tools.bench import fused_ops, openvino_graphs
from tools.bench.case import BF16, F16, F32, NARROW, Bound, Case, Inputs, normal


def attention_case(
    name: str,
    *,
    heads: int = 32,
    key_heads: int = 8,
    queries: int,
    keys: int,
    dim: int = 128,
    dtype: torch.dtype = F32,
    bound: Bound = "fma",
    attributes: Mapping[str, Any] | None = None,
    mask: bool = False,
    **rest: Any,
) -> Case:
    """Attention; what a causal or windowed query may not see costs nothing."""
    attributes = dict(attributes or {})

    def inputs() -> Inputs:
        made: Inputs = [normal(1, heads, queries, dim, dtype=dtype)]
        made += [normal(1, key_heads, keys, dim, dtype=dtype) for _ in range(2)]
        return [*made, visible] if mask else made

    visible = _visible(queries, keys, {"is_causal": 1} if mask else attributes)
    needed = visible if mask or attributes.get("window_size") else None
    causal = bool(attributes.get("is_causal")) and queries > 1 and needed is None

    def in_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: torch.Tensor) -> Any:
        return scaled_dot_product_attention(
            q, k, v, attn_mask=needed, is_causal=causal, enable_gqa=heads != key_heads
        )

    size = dtype.itemsize
    return Case(
        name + (f", {NARROW[dtype]}" if dtype in NARROW else ""),
        "scaled_dot_product_attention",
        inputs,
        in_torch,
        bound,
        flops=4.0 * heads * dim * int(visible.sum()),
        bytes=2.0 * size * dim * (heads * queries + key_heads * keys),
        attributes=attributes,
        # One query reads keys; it would read those that are repeated for OpenVINO several times.
        openvino=None if queries == 1 else openvino_graphs.attention(needed, causal=causal),
        parts=key_heads if queries * keys > _MOST_SCORES else 1,
        **rest,
    )


def _visible(queries: int, keys: int, attributes: Mapping[str, Any]) -> torch.Tensor:
    distance = torch.arange(queries)[:, None] + (keys - queries) - torch.arange(keys)[None, :]
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if attributes.get("is_causal"):
        seen &= distance >= 0
    if window := attributes.get("window_size"):
        seen &= distance.abs() < window
    return seen


_MOST_SCORES = 1 << 21
CAUSAL = {"is_causal": 1}
CAUSAL_PEERS = (fused_ops.group_query_attention, fused_ops.attention)


def decode_cases() -> list[Case]:
    """One query against a cache."""
    goals: list[tuple[int, torch.dtype, dict[str, Any]]] = [
        (1024, F32, {"milliseconds": 0.20, "ratios": {"GroupQueryAttention": 3.4}}),
        (1024, BF16, {}),
        (4096, F32, {"share": 0.85, "ratios": {"GroupQueryAttention": 3.4}}),
        (4096, F16, {}),
        (4096, BF16, {}),
    ]
    return [
        attention_case(
            f"attention decode {keys}",
            queries=1,
            keys=keys,
            dtype=dtype,
            bound="read",
            attributes=CAUSAL,
            fused=() if dtype == BF16 else CAUSAL_PEERS,
            **aimed_at,
        )
        for keys, dtype, aimed_at in goals
    ]


def masked_cases(dtype: torch.dtype) -> list[Case]:
    """A bool mask, and a window."""
    bound: Bound = "bf16" if dtype == BF16 else "fma"
    masks, windows = (fused_ops.attention,), (fused_ops.group_query_attention,)
    return [
        attention_case(
            "attention prefill 1024, bool mask",
            queries=1024,
            keys=1024,
            dtype=dtype,
            mask=True,
            bound=bound,
            fused=() if dtype == BF16 else masks,
        ),
        attention_case(
            "attention prefill 1024, window 256",
            queries=1024,
            keys=1024,
            dtype=dtype,
            attributes={"is_causal": 1, "window_size": 256},
            bound=bound,
            fused=() if dtype == BF16 else windows,
        ),
    ]


def attention_cases() -> list[Case]:
    """Prefill, masks, windows, vision and decoding."""
    prefill = [
        attention_case(
            f"attention prefill {length}",
            queries=length,
            keys=length,
            attributes=CAUSAL,
            fused=CAUSAL_PEERS,
            share=share,
            ratios={"GroupQueryAttention": 1.45, "Attention": 2.2, "torch": 1.6},
        )
        for length, share in ((512, 0.80), (1024, 0.85))
    ]
    narrow = [
        attention_case(
            f"attention prefill {length}",
            queries=length,
            keys=length,
            dtype=dtype,
            attributes=CAUSAL,
            fused=() if dtype == BF16 else CAUSAL_PEERS,
            bound="bf16",
            ratios={"torch": faster} if faster else {},
        )
        for length, dtype, faster in ((1024, BF16, 1.2), (4096, BF16, 1.3), (1024, F16, None))
    ]
    return [
        *prefill,
        *narrow,
        *(masked for dtype in (F32, BF16) for masked in masked_cases(dtype)),
        attention_case(
            "attention vision 197",
            heads=12,
            key_heads=12,
            queries=197,
            keys=197,
            dim=64,
            fused=(fused_ops.multi_head_attention, fused_ops.attention),
            share=0.85,
            ratios={"onnxruntime body": 1.0},
        ),
        *decode_cases(),
    ]
