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
    "rt_detr": {"encoder_in_channels": [32, 64, 128]},
    "efficientnet": {"hidden_dim": 640},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
}
"""Fields that have to have a certain value, also where the configuration is a part of another."""
