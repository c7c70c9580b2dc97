"""Language models that generate: the decoders of the zoo, and further architectures."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.architecture import (
    HEADS,
    LAYERS,
    VOCABULARY,
    WIDTH,
    Architecture,
    ids,
    token_dims,
)
from tests.models.decoders import DECODERS, SHAPE, language_model
from tests.models.mixtures import MIXTURES, STATEFUL

_GRANITE_MOE = {**SHAPE, "num_local_experts": 4, "num_experts_per_tok": 2}
_COHERE = {**SHAPE, "sliding_window": 8}
_LFM2 = {**SHAPE, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
_FALCON_H1 = {
    **SHAPE,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_ssm": 128,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 8,
}
_JETMOE = {**_GRANITE_MOE, "kv_channels": 16}
_MAMBA = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "state_size": 8,
    "time_step_rank": 4,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_JAMBA = {
    **SHAPE,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "mamba_d_state": 8,
    "mamba_dt_rank": 4,
}
_RECURRENT_GEMMA = {
    **SHAPE,
    "num_hidden_layers": 3,
    "head_dim": 16,
    "lru_width": WIDTH,
    "attention_window_size": 8,
}
_RWKV = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "context_length": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": False,
}
_OPENAI_GPT = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
_MPT = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "n_heads": HEADS,
    "n_layers": LAYERS,
    "max_seq_len": 128,
    "use_cache": False,
}
_DBRX = {
    **_MPT,
    "attn_config": {"clip_qkv": 8.0, "kv_n_heads": 2, "rope_theta": 10000.0},
    "ffn_config": {
        "hidden_size": WIDTH,
        "ffn_hidden_size": 96,
        "moe_num_experts": 4,
        "moe_top_k": 2,
    },
}
_SHARED_CACHE = {
    **SHAPE,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
}
_GEMMA3N = {
    **_SHARED_CACHE,
    "num_kv_shared_layers": 2,
    "laurel_rank": 4,
    "altup_num_inputs": 2,
    "activation_sparsity_pattern": [0.0] * 4,
}
_GEMMA4 = {**_SHARED_CACHE, "global_head_dim": 16, "num_kv_shared_layers": 0}
_PHI4 = {
    **SHAPE,
    "vision_config": {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "crop_size": 32,
        "patch_size": 8,
        "image_token_id": 120,
    },
    "audio_config": {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_blocks": 1,
        "num_attention_heads": 2,
        "nemo_conv_channels": 8,
        "ext_pw_out_channel": 16,
        "depthwise_separable_out_channel": 16,
        "bias_max_distance": 8,
        "audio_token_id": 121,
    },
}
"""With small encoders of pictures and sound, which are not exported."""
_ZAMBA = {
    **SHAPE,
    "num_hidden_layers": 4,
    "attention_head_dim": 32,
    "n_mamba_heads": 2,
    "mamba_d_state": 8,
    "mamba_dt_rank": 4,
    # transformers adds two layers of Mamba and one of both in front: these are of both.
    "attn_layer_period": 1,
    "attn_layer_offset": 0,
}
_ZAMBA2 = {
    **SHAPE,
    "num_hidden_layers": 3,
    "layers_block_type": ["mamba", "mamba", "hybrid"],
    "n_mamba_heads": 8,
    "mamba_headdim": 16,
    "mamba_d_state": 8,
    "num_mem_blocks": 1,
    # Most steps are below the minimum, which transformers applies to several tokens only.
    "time_step_min": 0.5,
    "time_step_max": 0.1,
}
_FURTHER = (
    Architecture("mamba", language_model("Mamba", **_MAMBA), ids, token_dims()),
    Architecture("falcon_mamba", language_model("FalconMamba", **_MAMBA), ids, token_dims()),
    Architecture("jamba", language_model("Jamba", **_JAMBA), ids, token_dims()),
    Architecture(
        "recurrent_gemma",
        language_model("RecurrentGemma", **_RECURRENT_GEMMA),
        ids,
        token_dims(),
    ),
    Architecture("openai_gpt", language_model("OpenAIGPT", **_OPENAI_GPT), ids, token_dims()),
    Architecture("mpt", language_model("Mpt", **_MPT), ids, token_dims()),
    Architecture("dbrx", language_model("Dbrx", **_DBRX), ids, token_dims()),
    Architecture("smollm3", language_model("SmolLM3", **SHAPE), ids, token_dims()),
    Architecture(
        "cohere2", language_model("Cohere2", **SHAPE, sliding_window=8), ids, token_dims()
    ),
    Architecture("glm4", language_model("Glm4", **SHAPE, head_dim=16), ids, token_dims()),
    Architecture("lfm2", language_model("Lfm2", **_LFM2), ids, token_dims()),
    Architecture("falcon_h1", language_model("FalconH1", **_FALCON_H1), ids, token_dims()),
    Architecture("granite_moe", language_model("GraniteMoe", **_GRANITE_MOE), ids, token_dims()),
    Architecture("jetmoe", language_model("JetMoe", **_JETMOE), ids, token_dims()),
    Architecture("gemma3n", language_model("Gemma3nText", **_GEMMA3N), ids, token_dims()),
    Architecture("gemma4", language_model("Gemma4Text", **_GEMMA4), ids, token_dims()),
    Architecture("zamba", language_model("Zamba", **_ZAMBA), ids, token_dims()),
    Architecture("zamba2", language_model("Zamba2", **_ZAMBA2), ids, token_dims()),
    Architecture("phi4_multimodal", language_model("Phi4Multimodal", **_PHI4), ids, token_dims()),
)
GENERATORS = {model.name: model for model in (*DECODERS, *MIXTURES, *STATEFUL, *_FURTHER)}
"""Decoders by name."""
RWKV = Architecture("rwkv", language_model("Rwkv", **_RWKV), ids, token_dims())
"""A decoder that takes no mask, and of which transformers mixes the rows of a batch."""
PROMPTS = ([5, 9, 17, 33, 8], [4, 101], [77, 6, 12])
"""Token ids of a batch of three."""


def with_weights_of_16_bits(model: torch.nn.Module) -> Any:
    """Round the weights to values that float16 and bfloat16 both represent exactly."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half().bfloat16())
    return model


def padded(prompts: Any = PROMPTS) -> tuple[torch.Tensor, torch.Tensor]:
    """Return prompts with padding on the left, and their mask."""
    length = max(map(len, prompts))
    ids = torch.tensor([[0] * (length - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask


def tokens_of_transformers(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, **options: Any
) -> Any:
    """Return what ``generate`` of transformers returns; no token ends a sequence by default."""
    settings = {"do_sample": False, "use_cache": True, "eos_token_id": None, "pad_token_id": 0}
    with torch.no_grad():
        return model.generate(input_ids=ids, attention_mask=mask, **(settings | options)).numpy()
