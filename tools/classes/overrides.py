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
}
"""Fields that have to have a certain value, also where the configuration is a part of another."""
