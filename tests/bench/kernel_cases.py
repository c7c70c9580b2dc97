"""What ``python -m tests.bench.kernels`` measures: one list of cases, and how to state one.

A case is a composite on inputs of fixed sizes, what it costs at least, what bounds it,
onnxruntime's ops that do the same, the same in torch, and what was aimed at. Add one to ``CASES``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.nn.functional import scaled_dot_product_attention

from tests.bench import fused_ops
from tests.bench.fused_ops import Fused

Inputs = list[torch.Tensor | None]
Bound = Literal["fma", "bf16", "read", "copy"]
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        name: As the table shows it.
        composite: What is called.
        inputs: Makes the inputs; None for an absent one.
        torch: The same in torch eager, on the same inputs.
        bound: What limits it: multiply-adds (of float32 or bfloat16 pairs), reading, or copying.
        flops: Floating-point operations that no implementation can save.
        bytes: Bytes that have to be read, or read and written, once.
        attributes: The composite's.
        fused: onnxruntime's ops for the same.
        share: Aimed at: this share of the limit.
        milliseconds: Aimed at: no more than this on one thread.
        ratios: Aimed at: this many times faster than the peer of that name.
    """

    name: str
    composite: str
    inputs: Callable[[], Inputs]
    torch: Callable[..., torch.Tensor]
    bound: Bound
    flops: float
    bytes: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    fused: Sequence[Callable[[Inputs, Mapping[str, Any]], Fused]] = ()
    share: float | None = None
    milliseconds: float | None = None
    ratios: Mapping[str, float] = field(default_factory=dict)


def normal(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    """Normally distributed numbers."""
    return torch.randn(shape).to(dtype)


# ── attention ────────────────────────────────────────────────────────────────────────────────
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
        return [*made, _visible(queries, keys, {"is_causal": 1})] if mask else made

    seen = int(_visible(queries, keys, {"is_causal": 1} if mask else attributes).sum())

    def in_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *masks: torch.Tensor) -> Any:
        given = masks[0] if masks else None
        causal = bool(attributes.get("is_causal")) and queries > 1 and given is None
        if attributes.get("window_size"):
            causal, given = False, _visible(queries, keys, attributes)
        return scaled_dot_product_attention(
            q, k, v, attn_mask=given, is_causal=causal, enable_gqa=heads != key_heads
        )

    size = torch.empty((), dtype=dtype).element_size()
    return Case(
        name,
        "scaled_dot_product_attention",
        inputs,
        in_torch,
        bound,
        flops=4.0 * heads * dim * seen,
        bytes=2.0 * size * dim * (heads * queries + key_heads * keys),
        attributes=attributes,
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


CAUSAL = {"is_causal": 1}
CAUSAL_PEERS = (fused_ops.group_query_attention, fused_ops.attention)
NARROW = {F16: "float16", BF16: "bfloat16"}


def decode_cases() -> list[Case]:
    """One query against a cache."""
    goals: list[tuple[int, torch.dtype, dict[str, Any]]] = [
        (1024, F32, {"milliseconds": 0.20, "ratios": {"GroupQueryAttention": 3.4}}),
        (4096, F32, {"share": 0.85, "ratios": {"GroupQueryAttention": 3.4}}),
        (4096, F16, {}),
        (4096, BF16, {}),
    ]
    return [
        attention_case(
            f"attention decode {keys}{', ' + NARROW[dtype] if dtype in NARROW else ''}",
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
            f"attention prefill 1024 {NARROW[dtype]}",
            queries=1024,
            keys=1024,
            dtype=dtype,
            attributes=CAUSAL,
            fused=() if dtype == BF16 else CAUSAL_PEERS,
            bound="bf16" if dtype == BF16 else "fma",
            share=0.75 if dtype == BF16 else None,
            ratios={"torch": 2.9} if dtype == BF16 else {},
        )
        for dtype in (BF16, F16)
    ]
    return [
        *prefill,
        *narrow,
        attention_case(
            "attention prefill 1024, bool mask",
            queries=1024,
            keys=1024,
            mask=True,
            fused=(fused_ops.attention,),
        ),
        attention_case(
            "attention prefill 1024, window 256",
            queries=1024,
            keys=1024,
            attributes={"is_causal": 1, "window_size": 256},
            fused=(fused_ops.group_query_attention,),
        ),
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


# ── norms ────────────────────────────────────────────────────────────────────────────────────
def rms_norm_case(rows: int, size: int, dtype: torch.dtype = F32, **rest: Any) -> Case:
    """RMS norm with a scale."""
    return Case(
        f"rms_norm {rows}×{size}{', ' + NARROW[dtype] if dtype in NARROW else ''}",
        "rms_norm",
        lambda: [normal(rows, size, dtype=dtype), normal(size, dtype=dtype)],
        lambda x, scale: torch.nn.functional.rms_norm(x, (size,), scale, 1e-5),
        "copy",
        flops=4.0 * rows * size,
        bytes=2.0 * rows * size * torch.empty((), dtype=dtype).element_size(),
        fused=(fused_ops.simplified_layer_norm,),
        **rest,
    )


def layer_norm_case(rows: int, size: int, **rest: Any) -> Case:
    """Layer norm with scale and bias."""
    return Case(
        f"layer_norm {rows}×{size}",
        "layer_norm",
        lambda: [normal(rows, size), normal(size), normal(size)],
        lambda x, scale, bias: torch.nn.functional.layer_norm(x, (size,), scale, bias, 1e-5),
        "copy",
        flops=7.0 * rows * size,
        bytes=8.0 * rows * size,
        fused=(fused_ops.layer_normalization,),
        **rest,
    )


# ── gated delta rule ─────────────────────────────────────────────────────────────────────────
def gated_delta_case(length: int, heads: int = 16, dim: int = 128, **rest: Any) -> Case:
    """The gated delta rule from a given state; keys have unit length already."""

    def inputs() -> Inputs:
        q, k, v = (normal(1, heads, length, dim) for _ in range(3))
        k = torch.nn.functional.normalize(k, dim=-1)
        g = -torch.nn.functional.softplus(normal(1, heads, length))
        beta = torch.sigmoid(normal(1, heads, length))
        return [q, k, v, g, beta, normal(1, heads, dim, dim)]

    state = 4.0 * heads * dim * dim
    return Case(
        f"gated_delta_update {heads} heads {dim}×{dim}, length {length}",
        "gated_delta_update",
        inputs,
        _chunked_delta_rule if length > 1 else _recurrent_delta_rule,
        "fma" if length > 1 else "copy",
        flops=6.0 * heads * dim * dim * length,
        bytes=2 * state + 16.0 * heads * dim * length,
        attributes={"use_qk_l2_norm": 0},
        fused=(fused_ops.linear_attention,),
        **rest,
    )


def _rows_first(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [x.transpose(1, 2) for x in inputs]


def _chunked_delta_rule(*inputs: torch.Tensor) -> torch.Tensor:
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    return qwen.torch_chunk_gated_delta_rule(
        *_rows_first(inputs[:5]), initial_state=inputs[5], output_final_state=True
    )[0]


def _recurrent_delta_rule(*inputs: torch.Tensor) -> torch.Tensor:
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    return qwen.torch_recurrent_gated_delta_rule(
        *_rows_first(inputs[:5]), initial_state=inputs[5], output_final_state=True
    )[0]


# ── rotation, experts, residuals, gates ──────────────────────────────────────────────────────
def rope_case(heads: int, length: int, dim: int, dtype: torch.dtype = F32, **rest: Any) -> Case:
    """Rotary embedding with given tables."""

    def in_torch(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    half = (length, dim // 2)
    return Case(
        f"rope {heads}×{length}×{dim}{', ' + NARROW[dtype] if dtype in NARROW else ''}",
        "rope",
        lambda: [normal(1, heads, length, dim, dtype=dtype), *(normal(*half, dtype=dtype),) * 2],
        in_torch,
        "copy",
        flops=3.0 * heads * length * dim,
        bytes=2.0 * heads * length * dim * torch.empty((), dtype=dtype).element_size(),
        fused=(fused_ops.rotary_embedding,),
        **rest,
    )


def gather_mm_case(tokens: int, *, transposed: bool, **rest: Any) -> Case:
    """Two of eight experts for each token, 1024 → 2816."""
    experts, top, k, n = 8, 2, 1024, 2816
    weights = (experts, n, k) if transposed else (experts, k, n)

    def inputs() -> Inputs:
        chosen = torch.rand(tokens, experts).topk(top).indices
        return [normal(tokens, 1, 1, k), normal(*weights), None, chosen]

    def in_torch(x: torch.Tensor, w: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        chosen = rest[-1].flatten()
        rows = x.flatten(0, 2).repeat_interleave(top, 0)
        output = rows.new_empty(len(rows), n)
        for expert in range(experts):
            mine = chosen == expert
            output[mine] = rows[mine] @ (w[expert].T if transposed else w[expert])
        return output.reshape(tokens, top, 1, n)

    read = min(tokens * top, experts) * 4.0 * k * n
    return Case(
        f"gather_mm {tokens} of 8×1024×2816{', transposed' if transposed else ''}",
        "gather_mm",
        inputs,
        in_torch,
        "fma" if tokens > 1 else "read",
        flops=2.0 * tokens * top * k * n,
        bytes=read,
        attributes={"transpose_rhs": int(transposed)},
        **rest,
    )


def skip_rms_norm_case(rows: int, size: int) -> Case:
    """A residual sum and its RMS norm; both outputs."""
    return Case(
        f"skip_rms_norm {rows}×{size}",
        "skip_rms_norm",
        lambda: [normal(rows, size), normal(rows, size), normal(size)],
        lambda x, skip, scale: torch.nn.functional.rms_norm(x + skip, (size,), scale, 1e-5),
        "copy",
        flops=5.0 * rows * size,
        bytes=16.0 * rows * size,
        fused=(fused_ops.skip_simplified_layer_norm,),
    )


def swiglu_case(rows: int, size: int) -> Case:
    """A gated activation."""
    return Case(
        f"swiglu {rows}×{size}",
        "swiglu",
        lambda: [normal(rows, size), normal(rows, size)],
        lambda gate, up: torch.nn.functional.silu(gate) * up,
        "copy",
        flops=20.0 * rows * size,
        bytes=12.0 * rows * size,
    )


CASES: list[Case] = [
    *attention_cases(),
    rms_norm_case(512, 4096, share=0.70, ratios={"SimplifiedLayerNormalization": 1.7}),
    rms_norm_case(512, 4096, F16),
    rms_norm_case(1, 4096, ratios={"SimplifiedLayerNormalization": 0.88}),
    layer_norm_case(512, 4096),
    gated_delta_case(512, share=0.75, ratios={"LinearAttention": 1.35}),
    gated_delta_case(1, milliseconds=0.053),
    rope_case(32, 512, 128, share=0.70, ratios={"RotaryEmbedding": 2.0}),
    rope_case(32, 512, 128, F16),
    gather_mm_case(256, transposed=False, share=0.80),
    gather_mm_case(256, transposed=True, share=0.80),
    gather_mm_case(1, transposed=False, share=0.90),
    gather_mm_case(1, transposed=True, share=0.90),
    skip_rms_norm_case(512, 4096),
    swiglu_case(512, 2816),
]
