"""Language models with experts, and those whose layers carry a state along the sequence."""

from __future__ import annotations

from tests.models.architecture import (
    VOCABULARY,
    WIDTH,
    Architecture,
    ids,
    ids_and_left_mask,
    token_dims,
)
from tests.models.decoders import SHAPE, language_model

_MIXTRAL = {**SHAPE, "num_local_experts": 4, "num_experts_per_tok": 2}
_QWEN3_MOE = {
    **SHAPE,
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
_GPT_OSS = {**_MIXTRAL, "head_dim": 16, "sliding_window": 8}
_DEEPSEEK = {
    **SHAPE,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}
_QWEN3_NEXT = {
    **_QWEN3_MOE,
    "shared_expert_intermediate_size": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
_MAMBA2 = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 16,
    "n_groups": 2,
    "chunk_size": 8,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"gather_mm": 4}
"""Two products in each of two layers: gate and up together, and down."""
_BOTH = token_dims("input_ids", "attention_mask")

MIXTURES = (
    Architecture(
        "mixtral", language_model("Mixtral", **_MIXTRAL), ids, token_dims(), keeps=_EXPERTS
    ),
    Architecture(
        "qwen3_moe", language_model("Qwen3Moe", **_QWEN3_MOE), ids, token_dims(), keeps=_EXPERTS
    ),
    Architecture(
        "gpt_oss", language_model("GptOss", **_GPT_OSS), ids_and_left_mask, _BOTH, keeps=_EXPERTS
    ),
    Architecture(
        "deepseek_v3",
        language_model("DeepseekV3", **_DEEPSEEK),
        ids,
        token_dims(),
        keeps={"gather_mm": 2},
    ),
)

STATEFUL = (
    Architecture(
        "qwen3_next",
        language_model("Qwen3Next", **_QWEN3_NEXT),
        ids,
        token_dims(longest=4096),
        sizes=((2, 9), (1, 5), (3, 70)),
        note="gated delta layers are gated_delta_update; torch itself fixes the number of chunks",
        exception="gated_delta_chunks",
        keeps={**_EXPERTS, "gated_delta_update": 1},
    ),
    Architecture(
        "mamba2",
        language_model("Mamba2", **_MAMBA2),
        ids,
        token_dims(),
        deferred=True,
        note="needs prefer_deferred_runtime_asserts_over_guards, else torch wants whole chunks",
    ),
)
