"""Attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from coreai_onnx.composites.checks import (
    Attributes,
    Dims,
    compute_dtype,
    not_multiple,
    not_one_of,
    wrong_rank,
)
from coreai_onnx.composites.declaration import Attribute, Composite, Input


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    *,
    scale: float | torch.Tensor | None = None,
    is_causal: int = 0,
    window_size: int = 0,
    causal_alignment: str = "lower_right",
    softcap: float | torch.Tensor = 0.0,
) -> torch.Tensor:
    """Return softmax(mask(scale * query @ keyᵀ)) @ value, after Vaswani et al. 2017, eq. 1.

    Args:
        query: ``[..., heads, query_length, head_dim]``, floating. Leading dims of query, key and
            value are broadcast against each other; a call in a model has one, ``batch``.
        key: ``[..., key_heads, key_length, head_dim]``; ``heads % key_heads == 0``, head ``h``
            reads key head ``h // (heads / key_heads)``.
        value: ``[..., value_heads, key_length, value_dim]``, grouped like ``key``.
        attn_mask: Broadcastable to ``[..., heads, query_length, key_length]``; bool (True:
            attend) or floating (added to the scores). It replaces ``is_causal`` and
            ``window_size``.
        sinks: ``[heads]`` raw logits, one extra softmax column that attends to nothing.
        scale: Factor on the scores, ``head_dim ** -0.5`` by default.
        is_causal: Nonzero: a query attends to keys up to its own position.
        window_size: If positive: only keys nearer than this many positions, the token included.
        causal_alignment: Alignment of the diagonal if the lengths differ: ``"lower_right"`` (the
            queries are the last tokens) or ``"upper_left"``.
        softcap: If positive: scores become ``softcap * tanh(scores / softcap)`` before masking.

    Returns:
        ``[..., heads, query_length, value_dim]`` in the dtype of ``query``. A fully masked row is
        zero, as in ``torch.nn.functional.scaled_dot_product_attention``.
    """
    wide = compute_dtype(query)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = _grouped_matmul(query.to(wide) * factor, key.to(wide).transpose(-2, -1))
    # In a trace softcap is a tensor, and the body is that for positive numbers.
    if isinstance(softcap, torch.Tensor) or softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    if attn_mask is None:
        attn_mask = position_mask(
            query.shape[-2], key.shape[-2], is_causal, window_size, causal_alignment, query.device
        )
    weights = _masked_softmax(scores, attn_mask, sinks)
    return _grouped_matmul(weights, value.to(wide)).to(query.dtype)


def position_mask(
    queries: int,
    keys: int,
    is_causal: int,
    window_size: int,
    causal_alignment: str,
    device: torch.device | None = None,
) -> torch.Tensor | None:
    """Return the bool mask ``[queries, keys]`` of causal or windowed attention; None otherwise."""
    if not is_causal and window_size <= 0:
        return None
    # With a cache, the queries are the last tokens of the keys.
    offset = keys - queries if causal_alignment == "lower_right" else 0
    position = torch.arange(queries, device=device)[:, None] + offset
    distance = position - torch.arange(keys, device=device)[None, :]
    if window_size <= 0:
        return distance >= 0
    near = distance < window_size
    return (near & (distance >= 0)) if is_causal else (near & (distance > -window_size))


def _grouped_matmul(x: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """Multiply ``[..., H, M, N] @ [..., K, N, P]``; each group of H / K heads shares a matrix."""
    *lead, heads, rows, columns = x.shape
    groups = shared.shape[-3]
    # Broadcast over the heads of a group, instead of repeating the shared matrices.
    grouped = x.reshape(*lead, groups, heads // groups, rows, columns)
    return (grouped @ shared.unsqueeze(-3)).flatten(-4, -3)


def _masked_softmax(
    scores: torch.Tensor, mask: torch.Tensor | None, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Return the softmax over the last axis, with a mask, sinks, and zeros in masked rows."""
    if mask is not None:
        if mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, float("-inf"))
        else:
            scores = scores + mask.to(scores.dtype)
    if sinks is not None:
        column = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = torch.softmax(scores, dim=-1)
    if sinks is not None:
        # No mask hides the sink: a row without keys is all zeros without further care.
        return weights[..., :-1]
    if mask is not None:
        # The softmax of -inf alone is NaN, where torch's attention returns zeros.
        empty = (scores == float("-inf")).all(dim=-1, keepdim=True)
        weights = weights.masked_fill(empty, 0.0)
    return weights


def wrong_alignment(attributes: Attributes) -> str:
    """Return what is wrong with the alignment of the diagonal; empty if nothing."""
    return not_one_of(attributes, "causal_alignment", ("lower_right", "upper_left"))


def wrong_heads(heads: int | None, groups: Mapping[str, int | None]) -> str:
    """Return for which input the heads of the query are no multiple of its own; empty for none."""
    messages = (
        not_multiple("query: the number of heads", heads, name, count)
        for name, count in groups.items()
    )
    return next(filter(None, messages), "")


def _check_attention(dims: Dims, attributes: Attributes) -> str:
    wrong = wrong_rank(dims, query=4, key=4, value=4) or wrong_alignment(attributes)
    groups = {} if wrong else {name: dims[name][1] for name in ("key", "value")}
    return wrong or wrong_heads(dims["query"][1], groups)


def canonical_attributes(dims: Dims, attributes: Attributes) -> dict[str, Any]:
    """Return the attributes, with defaults for those that have no effect, as with a mask."""
    # Calls that compute the same then share one body.
    written = dict(attributes)
    if "attn_mask" in dims:
        written |= {"is_causal": 0, "window_size": 0}
    written["is_causal"] = int(written["is_causal"] != 0)
    written["window_size"] = max(written["window_size"], 0)
    # Only masks of positions depend on the alignment.
    if not written["is_causal"] and not written["window_size"]:
        written["causal_alignment"] = "lower_right"
    return written


def _candidates(attributes: Attributes) -> Iterator[Attributes]:
    """Yield the attributes of a module; without an alignment, then torch's default."""
    yield attributes
    if "causal_alignment" not in attributes:
        yield {**attributes, "causal_alignment": "upper_left"}


def _unproven(dims: Dims, attributes: Attributes) -> str:
    window, keys = attributes.get("window_size") or 0, dims["key"][-2]
    # With no more keys than the window has places, a module without a window agrees too.
    if window <= 0 or "attn_mask" in dims or keys is None or keys > window:
        return ""
    return f"{keys} keys do not show a window of {window}"


ATTRIBUTES = (
    Attribute("scale", "float", aliases=("scaling", "softmax_scale")),
    Attribute("is_causal", "int", 0, structural=True),
    Attribute("window_size", "int", 0, aliases=("sliding_window",), structural=True, switch=True),
    Attribute("causal_alignment", "string", "lower_right", structural=True),
    Attribute("softcap", "float", 0.0, structural=True, switch=True),
)
"""The attributes that attention to tensors and to codes share."""
VARIANT_AXES = (
    (
        "causal",
        "causal_upper_left",
        "window",
        "window_upper_left",
        "causal_window",
        "causal_window_upper_left",
        "mask",
        "bias",
    ),
    ("sinks", "value_heads"),
    ("softcap",),
)
"""What hides keys; then sinks, or values with heads of their own; then a bound of scores."""

SCALED_DOT_PRODUCT_ATTENTION = Composite(
    name="scaled_dot_product_attention",
    inputs=(
        Input("query", dims="B H T D", aliases=("q", "query_states")),
        Input("key", dims="B K S D", aliases=("k", "key_states")),
        Input("value", dims="B V|K S E", aliases=("v", "value_states")),
        Input(
            "attn_mask",
            optional=True,
            dtype="any",
            dims="~B H T S",
            aliases=("attention_mask", "mask"),
        ),
        Input("sinks", optional=True, dtype="any", dims="H"),
    ),
    outputs=("output",),
    output_dims=("B H T E",),
    attributes=ATTRIBUTES,
    reference=scaled_dot_product_attention,
    kernel=True,
    formula="softmax(mask(scale * query @ key^T)) @ value",
    variant_axes=VARIANT_AXES,
    check=_check_attention,
    canonical=canonical_attributes,
    candidates=_candidates,
    unproven=_unproven,
)


def scaled_dot_product_attention_bshd(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *,
    scale: float | torch.Tensor | None = None,
    is_causal: int = 0,
    causal_alignment: str = "lower_right",
) -> torch.Tensor:
    """Return `scaled_dot_product_attention` of tensors whose heads are behind their tokens.

    Args:
        query: ``[batch, query_length, heads, head_dim]``, floating: rows of a projection, of which
            nothing is transposed.
        key: ``[batch, key_length, key_heads, head_dim]``.
        value: ``[batch, key_length, key_heads, value_dim]``.
        attn_mask: Broadcastable to ``[batch, heads, query_length, key_length]``, as for
            `scaled_dot_product_attention`.
        scale: The same.
        is_causal: The same.
        causal_alignment: The same.

    Returns:
        ``[batch, query_length, heads, value_dim]`` in the dtype of ``query``.
    """
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return scaled_dot_product_attention(
        query, key, value, attn_mask,
        scale=scale, is_causal=is_causal, causal_alignment=causal_alignment,
    ).transpose(1, 2)  # fmt: skip


def _check_bshd(dims: Dims, attributes: Attributes) -> str:
    wrong = wrong_rank(dims, query=4, key=4, value=4) or wrong_alignment(attributes)
    return wrong or wrong_heads(dims["query"][2], {"key": dims["key"][2]})


def _canonical_bshd(dims: Dims, attributes: Attributes) -> dict[str, Any]:
    written = canonical_attributes(dims, {**attributes, "window_size": 0})
    return {name: written[name] for name in attributes}


SCALED_DOT_PRODUCT_ATTENTION_BSHD = Composite(
    name="scaled_dot_product_attention_bshd",
    inputs=(
        Input("query", dims="B T H D"),
        Input("key", dims="B S K D"),
        Input("value", dims="B S K E"),
        Input("attn_mask", optional=True, dtype="any", dims="~B H T S"),
    ),
    outputs=("output",),
    output_dims=("B T H E",),
    attributes=(
        Attribute("scale", "float"),
        Attribute("is_causal", "int", 0, structural=True),
        Attribute("causal_alignment", "string", "lower_right", structural=True),
    ),
    reference=scaled_dot_product_attention_bshd,
    kernel=True,
    formula="scaled_dot_product_attention of [batch, length, heads, dim]",
    variant_axes=(("causal", "causal_upper_left", "mask", "bias"),),
    check=_check_bshd,
    canonical=_canonical_bshd,
)
