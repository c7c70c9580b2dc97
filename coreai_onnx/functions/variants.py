"""The words that tell the bodies of one composite apart; each names what a call has or does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from coreai_onnx.composite_ops.declaration import Composite
from coreai_onnx.functions.gather_mm import chooses_rows
from coreai_onnx.functions.norms import trailing
from coreai_onnx.functions.rotary import per_head
from coreai_onnx.functions.trace import Example

Examples = Sequence[Example | None]
Words = Callable[[Composite, Examples, Mapping[str, Any]], list[str]]
_PARAMETERS = ("scale", "bias", "mean", "variance")


def variant_words(
    composite: Composite, examples: Examples, attributes: Mapping[str, Any]
) -> list[str]:
    """Return the variant words of a call, one per group of its declaration at most.

    Args:
        composite: The declaration.
        examples: What the body depends on, one per input, None for an absent one.
        attributes: Every attribute of the call.
    """
    words = _WORDS.get(composite.name)
    return [] if words is None else words(composite, examples, attributes)


def named(composite: Composite, examples: Examples) -> dict[str, Example]:
    """Return the inputs that are present, by name."""
    pairs = zip(composite.inputs, examples, strict=False)
    return {declared.name: e for declared, e in pairs if e is not None}


def presence(composite: Composite, examples: Examples) -> list[str]:
    """Say which of scale and bias are there, and whether one has a dtype of its own."""
    given = named(composite, examples)
    has_bias = any(declared.name == "bias" for declared in composite.inputs)
    words = []
    if "scale" not in given:
        words = ["bias_only"] if "bias" in given else ["unscaled"]
    elif has_bias and "bias" not in given:
        words = ["no_bias"]
    first = examples[0]
    assert first is not None
    own = {given[n].dtype for n in _PARAMETERS if n in given} - {first.dtype}
    if own:
        words.append("wide_scale" if has_bias or own == {torch.float32} else "narrow_scale")
    return words


def _trailing_norm(
    composite: Composite, examples: Examples, attributes: Mapping[str, Any]
) -> list[str]:
    axes = list(attributes["axes"])
    words = [] if axes == [-1] else [f"axes{len(axes)}" if trailing(attributes) else "axes"]
    words += presence(composite, examples)
    given = named(composite, examples)
    parameters = [given[n] for n in _PARAMETERS if n in given]
    shaped = all(len(e.dims) == len(axes) and 1 not in e.dims for e in parameters)
    spelled = "bias" in {i.name for i in composite.inputs} and not shaped
    return [*words, "wide_scale"] if spelled and "wide_scale" not in words else words


def _norm(composite: Composite, examples: Examples, attributes: Mapping[str, Any]) -> list[str]:
    del attributes
    return presence(composite, examples)


def _attention(
    composite: Composite, examples: Examples, attributes: Mapping[str, Any]
) -> list[str]:
    given = named(composite, examples)
    words = []
    if "attn_mask" in given:
        words.append("mask" if given["attn_mask"].dtype == torch.bool else "bias")
    else:
        parts = ["causal"] if attributes["is_causal"] else []
        parts += ["window"] if attributes["window_size"] > 0 else []
        upper_left = attributes["causal_alignment"] == "upper_left"
        parts += ["upper_left"] if parts and upper_left else []
        words += ["_".join(parts)] if parts else []
    if "sinks" in given:
        words.append("sinks")
    elif given["key"].dims[1] != given["value"].dims[1]:
        words.append("value_heads")
    words += ["softcap"] if attributes["softcap"] > 0 else []
    return words


def _rope(composite: Composite, examples: Examples, attributes: Mapping[str, Any]) -> list[str]:
    given = named(composite, examples)
    if "cos" in given and "sin" in given:
        words = ["per_head"] if per_head(composite, examples) else []
        given.pop("freqs", None)
    elif "position_ids" in given:
        words = ["positions"]
    else:
        words = ["offset"] if "offset" in given else ["sequence"]
    words += ["freqs"] if "freqs" in given else []
    words += ["interleaved"] if attributes["interleaved"] else []
    words += ["partial"] if attributes["dims"] else []
    words += ["rank3"] if len(given["input"].dims) == 3 else []
    return words


def _gather_mm(
    composite: Composite, examples: Examples, attributes: Mapping[str, Any]
) -> list[str]:
    given = named(composite, examples)
    left, right = "lhs_indices" in given, "rhs_indices" in given
    words = ["both_indices"] if left and right else []
    words = words or (["lhs_indices"] if left else ["rhs_indices"] if right else [])
    words += ["rows"] if right and chooses_rows(given["rhs"], attributes) else []
    return [*words, "transposed"] if attributes["transpose_rhs"] else words


def _gated_delta(
    composite: Composite, examples: Examples, attributes: Mapping[str, Any]
) -> list[str]:
    words = [] if "initial_state" in named(composite, examples) else ["no_state"]
    return words if attributes["use_qk_l2_norm"] else [*words, "no_norm"]


def _geglu(composite: Composite, examples: Examples, attributes: Mapping[str, Any]) -> list[str]:
    del composite, examples
    return ["tanh"] if attributes["approximate"] == "tanh" else []


def _vector_norm(
    composite: Composite, examples: Examples, attributes: Mapping[str, Any]
) -> list[str]:
    del composite, examples
    order = float(attributes["ord"])
    words = {2.0: [], 1.0: ["absolute"], 0.0: ["count"]}
    words |= {math.inf: ["greatest"], -math.inf: ["least"]}
    return list(words.get(order, ["power"]))


def _pooling(composite: Composite, examples: Examples, attributes: Mapping[str, Any]) -> list[str]:
    del composite, examples
    return [] if attributes.get("divisor_override") is None else ["divisor"]


def _pixel_shuffle(
    composite: Composite, examples: Examples, attributes: Mapping[str, Any]
) -> list[str]:
    del attributes
    return [] if len(named(composite, examples)["input"].dims) == 4 else ["any_rank"]


_WORDS: dict[str, Words] = {
    "scaled_dot_product_attention": _attention,
    "layer_norm": _trailing_norm,
    "rms_norm": _trailing_norm,
    "group_norm": _norm,
    "skip_layer_norm": _trailing_norm,
    "skip_rms_norm": _trailing_norm,
    "rope": _rope,
    "gather_mm": _gather_mm,
    "gated_delta_update": _gated_delta,
    "geglu": _geglu,
    "gelu": _geglu,
    "instance_norm": _norm,
    "batch_norm": _norm,
    "linalg_vector_norm": _vector_norm,
    "avg_pool_2d": _pooling,
    "avg_pool_3d": _pooling,
    "pixel_shuffle": _pixel_shuffle,
}
