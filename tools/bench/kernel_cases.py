"""What ``python -m tools.bench.kernels`` measures: one list of cases.

A case is a composite on inputs of fixed sizes, what it costs at least, what bounds it,
onnxruntime's ops that do the same, the same in torch, and what was aimed at. Add one to ``CASES``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from tools.bench import fused_ops
from tools.bench.attention_cases import attention_cases
from tools.bench.case import BF16, F16, F32, NARROW, Case, Inputs, normal
from tools.bench.narrow_cases import narrow_cases


# ── norms ────────────────────────────────────────────────────────────────────────────────────
def rms_norm_case(rows: int, size: int, dtype: torch.dtype = F32, **rest: Any) -> Case:
    """RMS norm with a scale."""
    return Case(
        f"rms_norm {rows}×{size}{', ' + NARROW[dtype] if dtype in NARROW else ''}",
        "rms_norm",
        lambda: [normal(rows, size, dtype=dtype), normal(size, dtype=dtype)],
        lambda x, scale: functional.rms_norm(x, (size,), scale, 1e-5),
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
        lambda x, scale, bias: functional.layer_norm(x, (size,), scale, bias, 1e-5),
        "copy",
        flops=7.0 * rows * size,
        bytes=8.0 * rows * size,
        fused=(fused_ops.layer_normalization,),
        **rest,
    )


# ── gated delta rule ─────────────────────────────────────────────────────────────────────────
def gated_delta_case(
    length: int, heads: int = 16, dim: int = 128, dtype: torch.dtype = F32, **rest: Any
) -> Case:
    """The gated delta rule from a given state in float32; keys have unit length already."""

    def inputs() -> Inputs:
        q, k, v = (normal(1, heads, length, dim) for _ in range(3))
        k = functional.normalize(k, dim=-1)
        g = -functional.softplus(normal(1, heads, length))
        beta = torch.sigmoid(normal(1, heads, length))
        rows = [x.to(dtype) for x in (q, k, v)]
        return [*rows, g, beta.to(dtype), normal(1, heads, dim, dim)]

    state = 4.0 * heads * dim * dim
    return Case(
        f"gated_delta_update {heads} heads {dim}×{dim}, length {length}"
        + (f", {NARROW[dtype]}" if dtype in NARROW else ""),
        "gated_delta_update",
        inputs,
        _chunked_delta_rule if length > 1 else _recurrent_delta_rule,
        "fma" if length > 1 else "copy",
        flops=6.0 * heads * dim * dim * length,
        bytes=2 * state + 4.0 * dtype.itemsize * heads * dim * length,
        attributes={"use_qk_l2_norm": 0},
        fused=(fused_ops.linear_attention,) if dtype == F32 else (),
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


def gather_mm_case(
    tokens: int,
    *,
    transposed: bool = False,
    constant: bool = False,
    dtype: torch.dtype = F32,
    **rest: Any,
) -> Case:
    """Two of eight experts for each token, 1024 → 2816; their matrices given in each run or not."""
    experts, top, k, n = 8, 2, 1024, 2816
    weights = (experts, n, k) if transposed else (experts, k, n)

    def inputs() -> Inputs:
        chosen = torch.rand(tokens, experts).topk(top).indices
        rows = normal(tokens, 1, 1, k, dtype=dtype)
        return [rows, normal(*weights, dtype=dtype), None, chosen]

    def in_torch(x: torch.Tensor, w: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        chosen = rest[-1].flatten()
        rows = x.flatten(0, 2).repeat_interleave(top, 0)
        output = rows.new_empty(len(rows), n)
        for expert in range(experts):
            mine = chosen == expert
            output[mine] = rows[mine] @ (w[expert].T if transposed else w[expert])
        return output.reshape(tokens, top, 1, n)

    read = min(tokens * top, experts) * float(k * n * dtype.itemsize)
    kind = (", transposed" if transposed else "") + (", constant" if constant else "")
    kind += f", {NARROW[dtype]}" if dtype in NARROW else ""
    return Case(
        f"gather_mm {tokens} of 8×1024×2816{kind}",
        "gather_mm",
        inputs,
        in_torch,
        "read" if tokens == 1 else "fma" if dtype == F32 else "bf16",
        flops=2.0 * tokens * top * k * n,
        bytes=read,
        constants=(1,) if constant else (),
        attributes={"transpose_rhs": int(transposed)},
        **rest,
    )


def skip_rms_norm_case(rows: int, size: int) -> Case:
    """A residual sum and its RMS norm; both outputs."""

    def in_torch(x: torch.Tensor, skip: torch.Tensor, scale: torch.Tensor) -> Any:
        total = x + skip
        return functional.rms_norm(total, (size,), scale, 1e-5), total

    return Case(
        f"skip_rms_norm {rows}×{size}",
        "skip_rms_norm",
        lambda: [normal(rows, size), normal(rows, size), normal(size)],
        in_torch,
        "copy",
        flops=5.0 * rows * size,
        bytes=16.0 * rows * size,
        fused=(fused_ops.skip_simplified_layer_norm,),
    )


def skip_layer_norm_case(rows: int, size: int) -> Case:
    """A residual sum and its layer norm; both outputs."""

    def in_torch(x: torch.Tensor, skip: torch.Tensor, *affine: torch.Tensor) -> Any:
        total = x + skip
        return functional.layer_norm(total, (size,), *affine), total

    return Case(
        f"skip_layer_norm {rows}×{size}",
        "skip_layer_norm",
        lambda: [normal(rows, size), normal(rows, size), normal(size), normal(size)],
        in_torch,
        "copy",
        flops=8.0 * rows * size,
        bytes=16.0 * rows * size,
        fused=(fused_ops.skip_layer_norm,),
    )


def group_norm_case(channels: int, side: int, groups: int = 32) -> Case:
    """An image's groups of channels."""
    return Case(
        f"group_norm {channels}×{side}×{side}",
        "group_norm",
        lambda: [normal(1, channels, side, side), normal(channels), normal(channels)],
        lambda x, scale, bias: functional.group_norm(x, groups, scale, bias),
        "copy",
        flops=7.0 * channels * side * side,
        bytes=8.0 * channels * side * side,
        attributes={"num_groups": groups},
    )


def gated_case(composite: str, rows: int, size: int) -> Case:
    """A gated activation."""
    activation = functional.silu if composite == "swiglu" else functional.gelu
    return Case(
        f"{composite} {rows}×{size}",
        composite,
        lambda: [normal(rows, size), normal(rows, size)],
        lambda gate, up: activation(gate) * up,
        "copy",
        flops=20.0 * rows * size,
        bytes=12.0 * rows * size,
    )


def kv_cache_case(places: int, length: int, heads: int = 8, dim: int = 128) -> Case:
    """Tokens written into a cache that stays where it is."""

    def in_torch(cache: torch.Tensor, update: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return cache.index_copy_(2, at + torch.arange(length), update)

    return Case(
        f"kv_cache_update {length} of {places}, in place",
        "kv_cache_update",
        lambda: [
            normal(1, heads, places, dim),
            normal(1, heads, length, dim),
            torch.tensor([places // 2]),
        ],
        in_torch,
        "copy",
        flops=0.0,
        bytes=8.0 * heads * length * dim,
        fused=(fused_ops.tensor_scatter,),
        in_place=True,
    )


CASES: list[Case] = [
    *attention_cases(),
    rms_norm_case(512, 4096, share=0.70, ratios={"SimplifiedLayerNormalization": 1.7}),
    rms_norm_case(512, 4096, F16),
    rms_norm_case(1, 4096, ratios={"SimplifiedLayerNormalization": 0.88}),
    layer_norm_case(512, 4096),
    gated_delta_case(512, share=0.75, ratios={"LinearAttention": 1.35}),
    gated_delta_case(1, milliseconds=0.053),
    gated_delta_case(128, dtype=BF16),
    gated_delta_case(512, dtype=BF16),
    gated_delta_case(512, dtype=F16),
    gated_delta_case(1, dtype=BF16),
    rope_case(32, 512, 128, share=0.70, ratios={"RotaryEmbedding": 2.0}),
    rope_case(32, 512, 128, F16),
    gather_mm_case(256, share=0.80),
    gather_mm_case(256, transposed=True, share=0.80),
    gather_mm_case(256, constant=True, share=0.85),
    gather_mm_case(256, transposed=True, constant=True, share=0.85),
    gather_mm_case(1, share=0.90),
    gather_mm_case(1, transposed=True, share=0.90),
    gather_mm_case(256, dtype=BF16),
    gather_mm_case(256, transposed=True, constant=True, dtype=BF16, ratios={"torch": 1.1}),
    gather_mm_case(1, transposed=True, constant=True, dtype=BF16),
    gather_mm_case(256, transposed=True, constant=True, dtype=F16),
    *narrow_cases(),
    skip_rms_norm_case(512, 4096),
    skip_layer_norm_case(512, 4096),
    group_norm_case(320, 64),
    gated_case("swiglu", 512, 2816),
    gated_case("geglu", 512, 2816),
    kv_cache_case(1024, 1),
    kv_cache_case(4096, 512),
]
