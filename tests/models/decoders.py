"""Language models that read from left to right, every layer the same kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

from tests.models.architecture import (
    HEADS,
    LAYERS,
    VOCABULARY,
    WIDTH,
    Architecture,
    ids,
    ids_and_left_mask,
    token_dims,
)

SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""What the configurations of most language models have in common."""


def language_model(name: str, **settings: Any) -> Callable[[], torch.nn.Module]:
    """Return what builds the language model of ``<name>Config`` with settings."""

    def make() -> torch.nn.Module:
        config = getattr(transformers, f"{name}Config")(**settings)
        return transformers.AutoModelForCausalLM.from_config(config)

    return make


_GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": WIDTH,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "use_cache": False,
}
_NO_GROUPS = {n: v for n, v in SHAPE.items() if n != "num_key_value_heads"}
_OPT = {
    **{n: v for n, v in _NO_GROUPS.items() if n != "intermediate_size"},
    "ffn_dim": 96,
    "word_embed_proj_dim": 32,
    "max_position_embeddings": 80,
}
_FALCON = {
    **{n: v for n, v in _NO_GROUPS.items() if n != "intermediate_size"},
    "ffn_hidden_size": 96,
    "new_decoder_architecture": True,
    "num_kv_heads": 2,
}
_GEMMA = {**SHAPE, "head_dim": 16, "query_pre_attn_scalar": 16}

_GEMMA3 = {
    **_GEMMA,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}
_BOTH = token_dims("input_ids", "attention_mask")

DECODERS = (
    Architecture("gpt2", language_model("GPT2", **_GPT2), ids, token_dims()),
    Architecture("gpt_neox", language_model("GPTNeoX", **_NO_GROUPS), ids, token_dims()),
    Architecture("opt", language_model("OPT", **_OPT), ids_and_left_mask, _BOTH),
    Architecture("llama", language_model("Llama", **SHAPE), ids, token_dims()),
    Architecture(
        "mistral", language_model("Mistral", **SHAPE, sliding_window=8), ids_and_left_mask, _BOTH
    ),
    Architecture("qwen2", language_model("Qwen2", **SHAPE), ids, token_dims()),
    Architecture("qwen3", language_model("Qwen3", **SHAPE, head_dim=16), ids_and_left_mask, _BOTH),
    Architecture("gemma2", language_model("Gemma2", **_GEMMA, sliding_window=8), ids, token_dims()),
    Architecture("gemma3_text", language_model("Gemma3Text", **_GEMMA3), ids, token_dims()),
    Architecture("phi3", language_model("Phi3", **SHAPE), ids, token_dims()),
    Architecture("olmo2", language_model("Olmo2", **SHAPE), ids, token_dims()),
    Architecture("falcon", language_model("Falcon", **_FALCON), ids, token_dims()),
)
