"""Families of transformers that are not among tests/models, each from a small configuration."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tools.foreign.case import (
    VOCABULARY,
    Case,
    Inputs,
    Size,
    ids,
    ids_and_mask,
    image,
    imported,
    token_ids,
)

HIDDEN, HEADS, HEAD_DIM = 32, 4, 8
SMALL: dict[str, int | bool] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim"), HIDDEN),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 4),
    "vocab_size": VOCABULARY,
    "embedding_size": 16,
    "num_key_value_heads": 2,
    "head_dim": HEAD_DIM,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "num_mel_bins": 16,
    "image_size": 32,
    "patch_size": 8,
    "num_channels": 3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": False,
    "tie_word_embeddings": False,
}
"""Values for the fields of a configuration that has them."""


def small_config(config_class: Any, **given: Any) -> Any:
    """Return a small configuration; those of its parts are small, too.

    Args:
        config_class: A class of transformers.
        **given: Fields that differ; a mapping goes to the configuration of a part.
    """
    default = config_class()
    fields = {
        name: value
        for name, value in SMALL.items()
        if isinstance(getattr(default, name, ""), int | None) and name in default.to_dict()
    }
    for name in getattr(config_class, "sub_configs", {}):
        part = getattr(default, name, None)
        if part is not None and type(part).__name__ != "PretrainedConfig":
            own = given.pop(name, {})
            fields[name] = small_config(type(part), **own).to_dict()
    return config_class(**{**fields, **given})


def _make(family: str, model: str | None, given: Mapping[str, Any]) -> torch.nn.Module:
    config = small_config(imported("transformers.CONFIG_MAPPING")[family], **given)
    if model is None:
        made: torch.nn.Module = imported("transformers.AutoModel").from_config(config)
        return made
    found: torch.nn.Module = imported(f"transformers.{model}")(config)
    return found


def _case(
    family: str,
    inputs: Callable[[Size], Inputs],
    given: Mapping[str, Any],
    model: str | None = None,
) -> Case:
    name = f"transformers/{model or family}"
    return Case(name, "transformers", functools.partial(_make, family, model, given), inputs)


# ---------------------------------------------------------------------- inputs
def _with_decoder(size: Size) -> Inputs:
    return {**ids_and_mask(size), "decoder_input_ids": token_ids(size)}


def _samples(size: Size) -> Inputs:
    return {"input_values": torch.randn(size.batch, 100 * size.length)}


def _samples_and_mask(size: Size) -> Inputs:
    mask = torch.ones(size.batch, 100 * size.length, dtype=torch.int64)
    mask[0, -300:] = 0
    return {**_samples(size), "attention_mask": mask}


def _image_and_text(pixels: Callable[[Size], torch.Tensor], tokens: int) -> Any:
    """Return an input function: a text that begins with the tokens of its image."""

    def inputs(size: Size) -> Inputs:
        text = ids_and_mask(size)
        text["attention_mask"][:] = 1
        given = torch.full((size.batch, tokens), IMAGE_TOKEN)
        mask = torch.ones(size.batch, tokens, dtype=torch.int64)
        return {
            "input_ids": torch.cat([given, text["input_ids"]], 1),
            "pixel_values": pixels(size),
            "attention_mask": torch.cat([mask, text["attention_mask"]], 1),
        }

    return inputs


IMAGE_TOKEN = 3


def _pixels(size: Size) -> torch.Tensor:
    return torch.randn(size.batch, 3, 32, 32)


# ---------------------------------------------------------------------- the families
_TEXT = """
    afmoe albert apertus arcee aria_text bailing_hybrid bert-generation big_bird biogpt bitnet
    camembert canine cohere cohere2 cohere2_moe convbert data2vec-text deberta diffllama
    doge ernie ernie4_5 ernie4_5_moe esm eurobert exaone4 gemma glm glm4 glm4_moe gpt_bigcode
    gpt_neo granite granitemoe granitemoeshared helium hunyuan_v1_dense ibert internlm3 jetmoe
    kimi_linear layoutlm lfm2 longformer markuplm megatron-bert minimax ministral3 mobilebert
    modernbert-decoder mpt mra nanochat nemotron nomic_bert nystromformer olmo olmo3 olmoe
    olmo_hybrid persimmon phi phimoe qwen2_moe qwen3_5_text rembert
    roberta-prelayernorm roformer seed_oss smollm3 splinter stablelm starcoder2 tapas xglm
    xlm-roberta xmod yoso
""".split()
_IDS = "ctrl fnet openai-gpt".split()
_WITH_DECODER = """
    blenderbot blenderbot-small fsmt led longt5 m2m_100 marian mbart mt5 mvp pegasus pegasus_x
    plbart prophetnet umt5
""".split()
_IMAGES = """
    aimv2_vision_model beit data2vec-vision deit dinov2_with_registers dinov3_vit dpt glpn ijepa
    mobilevit pixio pvt_v2 swiftformer
""".split()
_ANY_IMAGES = "mobilenet_v1 mobilenet_v2 convnextv2 regnet".split()
_SOUNDS = "data2vec-audio hubert sew sew-d unispeech unispeech-sat".split()

_MAMBA: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}

_IMAGE_TOKENS: dict[str, Any] = {"image_token_index": IMAGE_TOKEN}
_HYBRID = ["linear_attention", "hybrid", "linear_attention"]

_GIVEN: dict[str, dict[str, Any]] = {
    "convnextv2": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]},
    "regnet": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "groups_width": 8},
    "esm": {"mask_token_id": 5},
    "xmod": {"default_language": "en_XX"},
    "kimi_linear": {"num_experts_per_token": 2},
}

TRANSFORMERS = (
    *(_case(name, ids_and_mask, _GIVEN.get(name, {})) for name in _TEXT),
    *(_case(name, ids, {}) for name in _IDS),
    *(_case(name, _with_decoder, {}) for name in _WITH_DECODER),
    *(_case(name, image("pixel_values", 32), {}) for name in _IMAGES),
    *(_case(name, image("pixel_values"), _GIVEN.get(name, {})) for name in _ANY_IMAGES),
    *(_case(name, _samples, {}) for name in _SOUNDS),
    _case("bamba", ids_and_mask, _MAMBA),
    _case("falcon_h1", ids_and_mask, {}),
    _case("falcon_mamba", ids_and_mask, {}),
    _case("mamba", ids_and_mask, {}),
    _case("jamba", ids_and_mask, {}),
    _case("nemotron_h", ids_and_mask, {}),
    _case("granitemoehybrid", ids_and_mask, _MAMBA),
    _case("zamba", ids_and_mask, {"num_hidden_layers": 3}),
    _case("zamba2", ids_and_mask, {"num_hidden_layers": 3, "layers_block_type": _HYBRID}),
    _case("recurrent_gemma", ids_and_mask, {}),
    _case("rwkv", ids, {"attention_hidden_size": HIDDEN}),
    _case("xlnet", ids_and_mask, {}),
    _case("gptj", ids_and_mask, {"rotary_dim": 4}),
    _case("bloom", ids_and_mask, {}),
    _case("wav2vec2", _samples_and_mask, {}, "Wav2Vec2ForCTC"),
    _case("llava", _image_and_text(_pixels, 16), _IMAGE_TOKENS),
    _case(
        "paligemma",
        _image_and_text(_pixels, 16),
        {**_IMAGE_TOKENS, "projection_dim": HIDDEN, "vision_config": {"projection_dim": HIDDEN}},
    ),
    _case("gemma3", _image_and_text(_pixels, 4), {**_IMAGE_TOKENS, "mm_tokens_per_image": 4}),
)
"""Every case, in the order of the sweep."""
