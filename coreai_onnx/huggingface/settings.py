"""Numbers of a model's ``config.json`` that no model can be built with.

transformers takes any number: it fails later without the name of the setting, or adds layers until
memory is full.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_INT64 = 2**63
_MOST_LAYERS = 10_000
_MOST_ELEMENTS = 2**31 - 1
_LAYERS = "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers"
_SIZES = (
    "vocab_size hidden_size d_model n_embd num_attention_heads n_head num_heads "
    "encoder_attention_heads decoder_attention_heads"
)
_LIMITS = MappingProxyType(
    {
        **dict.fromkeys(_LAYERS.split(), _MOST_LAYERS),
        **dict.fromkeys(_SIZES.split(), _MOST_ELEMENTS),
    }
)
"""The largest value of the settings that every model with them has; the smallest is 1."""


def setting_fault(settings: Mapping[str, Any]) -> str:
    """Return which setting has a number that no model can be built with; empty if none has.

    Args:
        settings: The content of a ``config.json``, with configurations of parts such as
            ``text_config``.
    """
    for name, value in settings.items():
        fault = ""
        if isinstance(value, Mapping):
            fault = setting_fault(value)
            if fault:
                return f"{name}.{fault}"
        elif isinstance(value, bool) or not isinstance(value, int | float):
            continue
        elif isinstance(value, float) and math.isnan(value):
            fault = "must be a number"
        elif isinstance(value, int) and not -_INT64 <= value < _INT64:
            fault = "must be a 64-bit integer"
        elif name in _LIMITS and not 1 <= value <= _LIMITS[name]:
            fault = f"must be from 1 to {_LIMITS[name]:,}"
        if fault:
            return f"{name} is {value!r:.40}, and {fault}"
    return ""
