"""Small configurations: those of transformers with fewer layers, heads, channels and words.

Fields are recognized by their names. Where the first profile gives no model that runs, the next
one is tried, which changes fewer fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig, ResNetConfig

from tools.classes.overrides import FIELDS
from tools.classes.state_spaces import mamba_heads
from tools.foreign.case import VOCABULARY

FIRST_TOKEN = 100
"""Special tokens whose default ids are above the vocabulary get ids from here on."""
_TIMM = ("TimmBackboneConfig", "TimmWrapperConfig")


@dataclass(frozen=True)
class Profile:
    """Sizes of a small model.

    Attributes:
        width: Of hidden states; None keeps the default.
        heads: Of attention; None keeps the default.
        head_dim: Of one head; None keeps the default.
        side: Of an image.
        patch: Of a patch.
        fills: Whether sizes that are None by default get a value.
    """

    width: int | None = 32
    heads: int | None = 4
    head_dim: int | None = 8
    side: int | None = 32
    patch: int | None = 8
    fills: bool = False


PROFILES = (
    Profile(),
    Profile(fills=True),
    Profile(width=96, heads=4, head_dim=24),
    Profile(width=64, heads=4, head_dim=16, side=64, patch=16),
    Profile(width=64, heads=4, head_dim=16, side=None, patch=None),
    Profile(None, None, None, None, None),
)
"""Tried in this order."""
_FILLS = re.compile(
    r"^(vocab_size|head_dim|num_key_value_heads|n_routed_experts|n_shared_experts"
    r"|num_experts_per_tok|prediction_length)$"
)
"""Sizes that are None by default although the model needs them."""

_FIXED = re.compile(
    r"num_channels|in_channels|in_chans|audio_channels|out_channels|num_mel|partial|conv_kernel"
    r"|rotary(?!_dim$)|rope(?!.*head_dim)|feat_extract_layers"
    r"|num_encoder_blocks|^num_stages$"
)
_WIDTH = re.compile(
    r"hidden_(size|dim|channels)s?$|^d_model$|^n_embd$|embed(ding)?_(dim|size)$|embed_dims?$|^dim$"
    r"|projection_(dim|size)$|proj_(dim|size)$|_dim$|_width$|^width$|channels?$|_rank$"
    r"|hidden_sizes$"
)
_INNER = re.compile(
    r"intermediate_size|ffn|^d_ff$|_ff_dim$|mlp_dim|^n_inner$|feed_forward.*(dim|size)"
)
_INTEGERS: tuple[tuple[re.Pattern[str], Callable[[Profile], int | None]], ...] = tuple(
    (re.compile(pattern), most)
    for pattern, most in (
        (r"(^|_)image_size$", lambda profile: profile.side),
        (r"(^|_)patch_size$", lambda profile: profile.patch),
        (_FIXED.pattern, lambda _: None),
        (
            r"vocab_size(_.*)?$|^codebook_size$|_vocab$|^codebook_vocab_size$",
            lambda _: VOCABULARY,
        ),
        (
            (
                r"max_.*positions?(_embeddings)?$|^n_positions$|^n_ctx$|^max_length$"
                r"|^max_seq(uence)?_len(gth)?$"
            ),
            lambda _: 64,
        ),
        (r"num_(local_|routed_)?experts$|n_routed_experts$|^moe_num_experts$", lambda _: 4),
        (r"experts_per_tok(en)?$|^moe_topk$|^moe_top_k$|^top_k$|^moe_k$|^n_group$", lambda _: 2),
        (r"^topk_group$|^n_shared_experts$|n_?groups$", lambda _: 1),
        (r"num_(object_)?queries$|num_proposals$|^prediction_length$", lambda _: 4),
        (r"^attention_window$|^context_size$", lambda _: 8),
        (r"^upsample_groups$", lambda profile: profile.width),
        (
            r"layers?$|blocks$|^depth$|_depth$|^num_hidden_groups$",
            lambda _: 2,
        ),
        (
            r"(key_value|kv)_heads?$|head_kv$|query_groups$",
            lambda profile: 2 if profile.heads else None,
        ),
        (r"(_|^)heads?$|nhead$", lambda profile: profile.heads),
        (
            r"head_dim$|head_size$|^d_kv$|^kv_channels$|^rotary_dim$",
            lambda profile: profile.head_dim,
        ),
        (_INNER.pattern, lambda profile: profile.width and 2 * profile.width),
        (_WIDTH.pattern, lambda profile: profile.width),
    )
)
"""The largest value of a field by its name, the first pattern that matches; None keeps it."""


def small_configs(config_class: Any) -> Iterator[Any]:
    """Yield small configurations of a class, smallest first.

    Raises:
        Exception: What the class raises, if it takes the fields of no profile.
    """
    rejected: Exception | None = None
    count = 0
    for profile in PROFILES:
        try:
            config = shrunk(config_class(), profile, {}, {})
        except Exception as error:  # noqa: BLE001 - a class rejects fields with anything
            rejected = rejected or error
            continue
        count += 1
        yield config
    if rejected is not None and not count:
        raise rejected


def shrunk(
    default: Any, profile: Profile, given: dict[str, Any], tokens: dict[int, int]
) -> PreTrainedConfig:
    """Return a small configuration of the same class.

    Args:
        default: The default configuration.
        profile: The sizes.
        given: Fields that have to have a certain value; a mapping is for the fields of a part.
        tokens: New ids of special tokens by their default ids; is extended.
    """
    given = {**FIELDS.get(type(default).model_type, {}), **given}
    fields = _changed_by_owner(default)
    for name, value in vars(default).items():
        if name.startswith("_") or name in ("transformers_version", "id2label", "label2id"):
            continue
        if isinstance(value, PreTrainedConfig):
            own = given.get(name, {})
            if type(value).__name__ in _TIMM and "use_timm_backbone" not in own:
                fields[name] = _backbone()
            else:
                fields[name] = shrunk(value, profile, own, tokens)
        elif name not in given:
            small = _small(name, value, profile, tokens)
            if small is not None and small != value:
                fields[name] = small
    fields |= _layers(default, fields)
    fields |= _related(default, fields, profile)
    fields |= mamba_heads(default, fields)
    if getattr(default, "pad_token_id", 0) is None:
        fields["pad_token_id"] = 0
    if getattr(default, "return_loss", False):
        fields["return_loss"] = False
    fields |= {k: v for k, v in given.items() if k not in fields or not isinstance(v, dict)}
    return type(default)(**fields)


def _changed_by_owner(default: Any) -> dict[str, Any]:
    """Return what the configuration of a whole model has changed in that of its part."""
    try:
        own = vars(type(default)())
    except Exception:  # noqa: BLE001 - a part may need arguments
        return {}
    kept = {
        name: value
        for name, value in vars(default).items()
        if not (name.startswith("_") or isinstance(value, PreTrainedConfig))
        and name in own
        and own[name] != value
    }
    features = getattr(default, "_out_features", None)
    if features and features != own.get("_out_features"):
        kept["out_features"] = features
    return kept


def _backbone() -> ResNetConfig:
    return ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 16, 32, 32],
        depths=[1, 1, 1, 1],
        out_features=["stage2", "stage3", "stage4"],
    )


def _small(name: str, value: Any, profile: Profile, tokens: dict[int, int]) -> Any:
    """Return the small value of a field; None leaves the default."""
    if value is None and profile.fills and _FILLS.search(name):
        return _small_int(name, 1 << 20, profile)
    if isinstance(value, bool) or value is None:
        return None
    if re.search(r"_(token|tok)_(id|index)s?$|_token$|^eos_token_id$|_start_token_id$", name):
        return _token(value, tokens)
    if name in ("width_coefficient", "depth_coefficient"):
        return 0.5
    if isinstance(value, list | tuple) and value and all(type(v) is int for v in value):
        return _small_list(name, list(value), profile)
    if type(value) is int:
        return _small_int(name, value, profile)
    return None


def _token(value: Any, tokens: dict[int, int]) -> Any:
    if isinstance(value, list | tuple):
        return [_token(v, tokens) for v in value] if all(type(v) is int for v in value) else None
    if type(value) is not int or value < FIRST_TOKEN:
        return None if type(value) is not int else value
    return tokens.setdefault(value, FIRST_TOKEN + len(tokens))


def _small_int(name: str, value: int, profile: Profile) -> int | None:
    for pattern, largest in _INTEGERS:
        if pattern.search(name):
            most = largest(profile)
            return None if most is None else min(value, most)
    return None


def _small_list(name: str, value: list[int], profile: Profile) -> list[int] | None:
    if name == "attention_window":
        return [8] * len(value)
    if re.search(r"feature_layers?$|_indexes$", name) and min(value) >= 0:
        return [min(i, 1) for i in range(len(value))]
    if name == "image_size":
        return [profile.side] * len(value) if profile.side else None
    if name == "patch_size":
        return [profile.patch] * len(value) if profile.patch else None
    if name in ("depths", "num_layers", "layers", "num_blocks", "encoder_depths"):
        return [1] * len(value)
    if profile.width is None:
        return None
    if re.search(r"heads", name):
        return [1 << (min(v, 4).bit_length() - 1) for v in value]
    if _FIXED.search(name) or not (_WIDTH.search(name) or _INNER.search(name)):
        return None
    if min(value) < profile.width // 2:
        return None
    if len(set(value)) == 1:
        return [profile.width] * len(value)
    return [max(1, v // min(value)) * profile.width // 2 for v in value]


def _related(default: Any, fields: dict[str, Any], profile: Profile) -> dict[str, Any]:
    """Return fields that follow from others: equal numbers of heads, sections of rotary angles."""
    found: dict[str, Any] = {}
    heads = vars(default).get("num_attention_heads")
    same = heads is not None and heads == vars(default).get("num_key_value_heads")
    if same and ("kv_lora_rank" in vars(default) or profile is not PROFILES[0]):
        found["num_key_value_heads"] = fields.get("num_attention_heads", heads)
    backbone = fields.get("backbone_config")
    if "encoder_in_channels" in vars(default) and hasattr(backbone, "hidden_sizes"):
        count = len(vars(default)["encoder_in_channels"])
        found["encoder_in_channels"] = list(backbone.hidden_sizes)[-count:]
    rope = getattr(default, "rope_parameters", None)
    if rope == {} and vars(default).get("layer_types"):
        one = {"rope_type": "default", "rope_theta": 10000.0}
        found["rope_parameters"] = dict.fromkeys(default.layer_types, one)
    if isinstance(rope, dict) and "mrope_section" in rope and profile.head_dim:
        half = int(profile.head_dim * rope.get("partial_rotary_factor", 1)) // 2
        third = half // 3
        found["rope_parameters"] = {**rope, "mrope_section": [half - 2 * third, third, third]}
    return found


def _layers(default: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Return one layer of each kind, and of every list with a value per layer what is left."""
    whole = vars(default).get("num_hidden_layers")
    if not isinstance(whole, int):
        return {}
    count = fields.get("num_hidden_layers", whole)
    features = vars(default).get("_out_features") or []
    if len(features) > 1 and f"stage{whole}" in vars(default).get("stage_names", []):
        stages = [f"stage{i + 1}" for i in range(len(features))]
        return {"num_hidden_layers": len(stages), "out_features": stages}
    per_layer = {
        name: list(value)
        for name, value in vars(default).items()
        if isinstance(value, list | tuple) and len(value) == whole and not name.startswith("_")
    }
    kinds = list(zip(*(v for k, v in per_layer.items() if k.endswith("layer_types")), strict=True))
    kept = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    if len(kept) < 2:
        kept = list(range(min(count, whole)))
    found: dict[str, Any] = {"num_hidden_layers": len(kept)} if whole != len(kept) else {}
    for name, value in per_layer.items():
        now = fields.get(name, value)
        found[name] = [now[i] for i in kept] if len(now) == whole else now
    return found
