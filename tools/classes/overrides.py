"""What the rules on names do not find out: fields of configurations by model type."""

from __future__ import annotations

from typing import Any

_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
FIELDS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"text_config": {"rope_parameters": _MROPE}},
    "qwen2_5_vl": {"text_config": {"rope_parameters": _MROPE}},
}
"""Fields that have to have a certain value; a mapping is for the fields of a part."""
