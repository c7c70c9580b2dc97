"""Sizes of Mamba layers, which follow from each other."""

from __future__ import annotations

from typing import Any

_EXPAND = ("expand", "mamba_expand")
_HEADS = ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads")
_HEAD_DIM = ("mamba_d_head", "mamba_head_dim", "mamba_headdim", "head_dim")
_INNER = ("mamba_d_ssm",)
_STATE = ("mamba_d_state", "ssm_state_size", "state_size")
COUNT = 4
"""Heads of a layer."""


def mamba_heads(default: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Return heads of Mamba layers whose width is the inner width; nothing for other models.

    Args:
        default: The default configuration.
        fields: What was made smaller.
    """
    own = vars(default)
    expand, heads, head_dim = (_first(own, names) for names in (_EXPAND, _HEADS, _HEAD_DIM))
    width = fields.get("hidden_size", own.get("hidden_size"))
    if expand is None or heads is None or head_dim is None or not isinstance(width, int):
        return {}
    inner = int(width * own[expand])
    found: dict[str, Any] = {heads: COUNT, head_dim: inner // COUNT}
    if (name := _first(own, _INNER)) is not None:
        found[name] = inner
    if (name := _first(own, _STATE)) is not None:
        found[name] = min(own[name], 16)
    return found


def _first(own: dict[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if own.get(name) is not None), None)
