"""What the rules on names do not find out: fields of configurations by model type."""

from __future__ import annotations

from typing import Any

_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
FIELDS: dict[str, dict[str, Any]] = {
    "align_vision_model": {"hidden_dim": 640},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "qwen2_vl_text": {"rope_parameters": _MROPE},
    "qwen2_5_vl_text": {"rope_parameters": _MROPE},
    "glm4v_text": {"rope_parameters": _MROPE},
    "glm_ocr_text": {"rope_parameters": _MROPE},
    "glm_image_text": {"rope_parameters": _MROPE},
    "dpt": {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]},
    "glm4v_moe_text": {
        "rope_parameters": {**_MROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}
    },
    "ernie4_5_vl_moe_text": {"rope_parameters": {**_MROPE, "mrope_section": [1, 1, 2]}},
    "hgnet_v2": {
        "stem_channels": [3, 16, 16],
        "stage_in_channels": [16, 16, 32, 64],
        "stage_mid_channels": [8, 8, 8, 16],
        "stage_out_channels": [16, 32, 64, 128],
        "hidden_sizes": [16, 32, 64, 128],
        "stage_numb_of_layers": [1, 1, 1, 1],
        "stage_num_blocks": [1, 1, 1, 1],
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "vits": {"noise_scale": 0.0, "noise_scale_duration": 0.0},
    "efficientnet": {"hidden_dim": 640},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "blip-2": {"image_token_index": 110},
    "instructblip": {"image_token_index": 110},
    "instructblipvideo": {"video_token_index": 110},
    "blt": {"use_cache": False},
    "clvp_encoder": {"hidden_size": 128, "projection_dim": 128},
    "clvp_decoder": {"hidden_size": 128},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
    "hunyuan_vl_text": {"head_dim": 8, "rope_parameters": _MROPE},
    "kimi_linear": {"num_experts_per_tok": 2},
    "longcat_flash": {"qk_head_dim": 16},
    "mistral4": {"head_dim": 16, "qk_head_dim": 16},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "pix2struct_vision_model": {"patch_embed_hidden_size": 768},
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
    },
    "qwen2_5_omni_thinker": {"vision_start_token_id": 110, "vision_end_token_id": 111},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 110, "vision_end_token_id": 111},
    "qwen2_5_omni_text": {"rope_parameters": _MROPE},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "tvp": {"max_img_size": 64, "visual_prompt_size": 8},
    "vibevoice_acoustic_tokenizer_encoder": {"num_filters": 4, "depths": [1] * 7},
    "vibevoice_acoustic_tokenizer_decoder": {"num_filters": 4, "depths": [1] * 7},
    "xmod": {"default_language": "en_XX"},
    "zoedepth": {
        "neck_hidden_sizes": [16, 32, 64, 64],
        "fusion_hidden_size": 32,
        "bottleneck_features": 32,
    },
    "data2vec-vision": {"num_hidden_layers": 4, "out_indices": [0, 1, 2, 3]},
    "seamless_m4t": {"feature_projection_input_dim": 160},
    "seamless_m4t_v2": {"feature_projection_input_dim": 160},
    "wav2vec2-bert": {"feature_projection_input_dim": 160},
}
"""Fields that have to have a certain value, also where the configuration is a part of another."""
BINS: dict[str, int] = {
    "fun_asr_nano_encoder": 560,
    "gemma4_audio": 128,
    "granite_speech5_encoder": 320,
    "granite_speech5_ctc": 320,
    "nemotron3_5_transcribe_audio": 128,
    "muse_spark_audio": 96,
    "seamless_m4t": 160,
    "seamless_m4t_v2": 160,
    "wav2vec2-bert": 160,
}
"""Bins of a spectrogram by model type, where no field of the configuration has their number."""
