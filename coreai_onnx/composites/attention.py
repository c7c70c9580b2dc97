"""Attention, and the cache of its keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch

from coreai_onnx.composites.checks import (
    Attributes,
    Dims,
    Tensors,
    compute_dtype,
    not_multiple,
    not_one_of,
    wrong_rank,
)
from coreai_onnx.composites.declaration import Attribute, Composite, Input

CACHE_BITS = (8, 4)
"""Sizes of the codes of keys and values."""
_HALF_BYTE = 4
CausalAlignment = Literal["lower_right", "upper_left"]


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
        return weights[..., :-1]
    if mask is not None:
        empty = (scores == float("-inf")).all(dim=-1, keepdim=True)
        weights = weights.masked_fill(empty, 0.0)
    return weights


def _check_attention(dims: Dims, attributes: Attributes) -> str:
    wrong = wrong_rank(dims, query=4, key=4, value=4)
    wrong = wrong or not_one_of(attributes, "causal_alignment", ("lower_right", "upper_left"))
    for name in ("key", "value"):
        groups = None if wrong else dims[name][1]
        wrong = wrong or not_multiple("query: the number of heads", dims["query"][1], name, groups)
    return wrong


def _canonical(dims: Dims, attributes: Attributes) -> dict[str, Any]:
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


_ATTRIBUTES = (
    Attribute("scale", "float", aliases=("scaling", "softmax_scale")),
    Attribute("is_causal", "int", 0, structural=True),
    Attribute("window_size", "int", 0, aliases=("sliding_window",), structural=True, switch=True),
    Attribute("causal_alignment", "string", "lower_right", structural=True),
    Attribute("softcap", "float", 0.0, structural=True, switch=True),
)
_VARIANT_AXES = (
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
    attributes=_ATTRIBUTES,
    reference=scaled_dot_product_attention,
    kernel=True,
    formula="softmax(mask(scale * query @ key^T)) @ value",
    variant_axes=_VARIANT_AXES,
    check=_check_attention,
    canonical=_canonical,
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
    wrong = wrong_rank(dims, query=4, key=4, value=4)
    wrong = wrong or not_one_of(attributes, "causal_alignment", ("lower_right", "upper_left"))
    heads, groups = (None if wrong else dims[name][2] for name in ("query", "key"))
    return wrong or not_multiple("query: the number of heads", heads, "key", groups)


def _canonical_bshd(dims: Dims, attributes: Attributes) -> dict[str, Any]:
    written = _canonical(dims, {**attributes, "window_size": 0})
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


def dequantized_rows(
    codes: torch.Tensor, scales: torch.Tensor, bits: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return the values ``(code - 2 ** (bits - 1)) * scale`` of codes of 8 or 4 bits.

    Args:
        codes: uint8, ``[..., dim * bits / 8]``. With 4 bits, a byte ``i`` has the code ``i`` in its
            lower half, and the code ``i + dim / 2`` in its upper half.
        scales: ``[..., 1]``, floating.
        bits: 8 or 4.
        dtype: The dtype of the computation and of the result.

    Returns:
        ``[..., dim]``.
    """
    if bits == _HALF_BYTE:
        codes = torch.cat([codes & 15, codes >> 4], -1)
    values: torch.Tensor = (codes.to(dtype) - 2 ** (bits - 1)) * scales.to(dtype)
    return values


def quantized_rows(x: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes of values, and a scale for each row; see `dequantized_rows`.

    The scale is the largest magnitude of the row divided by ``2 ** (bits - 1) - 1``, so that codes
    are symmetric: 1 to 255, or 1 to 15.

    Args:
        x: ``[..., dim]``, floating; ``dim`` is even.
        bits: 8 or 4.
    """
    largest = x.abs().amax(-1, keepdim=True)
    # A row of zeros has a scale too, by which it is divided; that of float16 changes no other.
    least = 2.0**-24 if x.dtype == torch.float16 else torch.finfo(x.dtype).tiny
    scales = largest / (2 ** (bits - 1) - 1) + least
    codes = (torch.round(x / scales) + 2 ** (bits - 1)).to(torch.uint8)
    if bits == _HALF_BYTE:
        lower, upper = codes.chunk(2, -1)
        codes = lower | (upper << 4)
    return codes, scales


def attention_nbits(
    query: torch.Tensor,
    key_codes: torch.Tensor,
    key_scales: torch.Tensor,
    value_codes: torch.Tensor,
    value_scales: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    *,
    scale: float | torch.Tensor | None = None,
    is_causal: int = 0,
    window_size: int = 0,
    causal_alignment: str = "lower_right",
    softcap: float | torch.Tensor = 0.0,
    bits: int = 8,
) -> torch.Tensor:
    """Return attention to keys and values of few bits, as a cache of few bits has them.

    This is `scaled_dot_product_attention` to the values of `dequantized_rows`, one scale for each
    token and head.

    Args:
        query: ``[batch, heads, query_length, head_dim]``, floating.
        key_codes: uint8, ``[batch, key_heads, key_length, head_dim * bits / 8]``.
        key_scales: ``[batch, key_heads, key_length, 1]``, in the dtype of ``query``.
        value_codes: uint8, ``[batch, value_heads, key_length, value_dim * bits / 8]``.
        value_scales: ``[batch, value_heads, key_length, 1]``, in the dtype of ``query``.
        attn_mask: As for `scaled_dot_product_attention`.
        sinks: The same.
        scale: The same.
        is_causal: The same.
        window_size: The same.
        causal_alignment: The same.
        softcap: The same.
        bits: Size of a code: 8 or 4.

    Returns:
        ``[batch, heads, query_length, value_dim]`` in the dtype of ``query``.
    """
    wide = compute_dtype(query)
    key = dequantized_rows(key_codes, key_scales, bits, wide)
    value = dequantized_rows(value_codes, value_scales, bits, wide)
    result = scaled_dot_product_attention(
        query.to(wide), key, value, attn_mask, sinks, scale=scale, is_causal=is_causal,
        window_size=window_size, causal_alignment=causal_alignment, softcap=softcap,
    )  # fmt: skip
    return result.to(query.dtype)


def _check_nbits(dims: Dims, attributes: Attributes) -> str:
    ranks = dict.fromkeys(("query", "key_codes", "key_scales", "value_codes", "value_scales"), 4)
    wrong = wrong_rank(dims, **ranks)
    wrong = wrong or not_one_of(attributes, "causal_alignment", ("lower_right", "upper_left"))
    if not wrong and attributes["bits"] not in CACHE_BITS:
        wrong = f"bits must be 8 or 4, got {attributes['bits']}"
    for name in ("key_codes", "value_codes"):
        groups = None if wrong else dims[name][1]
        wrong = wrong or not_multiple("query: the number of heads", dims["query"][1], name, groups)
    return wrong


ATTENTION_NBITS = Composite(
    name="attention_nbits",
    inputs=(
        Input("query", dims="B H T D", aliases=("q",)),
        Input("key_codes", dtype="uint8", dims="B K S C"),
        Input("key_scales", dims="B K S 1"),
        Input("value_codes", dtype="uint8", dims="B V|K S E"),
        Input("value_scales", dims="B V|K S 1"),
        Input("attn_mask", optional=True, dtype="any", dims="~B H T S"),
        Input("sinks", optional=True, dtype="any", dims="H"),
    ),
    outputs=("output",),
    output_dims=("?",),
    attributes=(*_ATTRIBUTES, Attribute("bits", "int", 8, structural=True)),
    reference=attention_nbits,
    kernel=True,
    formula="softmax(mask(scale * query @ key^T)) @ value, where (codes - 2^(bits-1)) * scales",
    variant_axes=(*_VARIANT_AXES, ("bits4",)),
    check=_check_nbits,
    canonical=_canonical,
)


def paged_attention(
    query: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    block_table: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    *,
    scale: float | torch.Tensor | None = None,
    softcap: float | torch.Tensor = 0.0,
) -> torch.Tensor:
    """Return attention to keys and values in blocks, after Kwon et al. 2023 (PagedAttention).

    Key ``i`` of batch row ``b`` is token ``i % tokens`` of block ``block_table[b, i // tokens]``.

    Args:
        query: ``[batch, heads, query_length, head_dim]``, floating.
        key_pool: ``[blocks, tokens, key_heads, head_dim]``, grouped as for
            `scaled_dot_product_attention`; ``tokens`` is a power of two.
        value_pool: ``[blocks, tokens, value_heads, value_dim]``.
        block_table: ``[batch, table_length]``, integer, ``0 <= block_table < blocks``. A row may
            end with any blocks, if the mask hides them.
        attn_mask: Broadcastable to ``[batch, heads, query_length, table_length * tokens]``, as for
            `scaled_dot_product_attention`.
        sinks: The same.
        scale: The same.
        softcap: The same.

    Returns:
        ``[batch, heads, query_length, value_dim]`` in the dtype of ``query``.
    """
    key, value = (
        pool[block_table].flatten(1, 2).transpose(1, 2) for pool in (key_pool, value_pool)
    )
    return scaled_dot_product_attention(
        query, key, value, attn_mask, sinks, scale=scale, softcap=softcap
    )


def _check_paged(dims: Dims, attributes: Attributes) -> str:
    del attributes
    wrong = wrong_rank(dims, query=4, key_pool=4, value_pool=4, block_table=2)
    if wrong:
        return wrong
    tokens = dims["key_pool"][1]
    if tokens is not None and (tokens < 1 or tokens & (tokens - 1)):
        return f"the tokens of a block must be a power of two, got {tokens}"
    for name in ("key_pool", "value_pool"):
        groups = None if wrong else dims[name][2]
        wrong = wrong or not_multiple("query: the number of heads", dims["query"][1], name, groups)
    return wrong


def _admissible_blocks(inputs: Tensors) -> Tensors:
    """Return inputs with blocks that there are."""
    blocks = inputs["key_pool"].shape[0]
    return {**inputs, "block_table": inputs["block_table"].abs() % blocks}


PAGED_ATTENTION = Composite(
    name="paged_attention",
    inputs=(
        Input("query", dims="B H T D", aliases=("q",)),
        Input("key_pool", dims="N P K D", aliases=("key_cache",)),
        Input("value_pool", dims="N P V|K E", aliases=("value_cache",)),
        Input("block_table", dtype="index", dims="B W", aliases=("block_tables",)),
        Input("attn_mask", optional=True, dtype="any", dims="~B H T S", aliases=("mask",)),
        Input("sinks", optional=True, dtype="any", dims="H"),
    ),
    outputs=("output",),
    output_dims=("B H T E",),
    attributes=(
        Attribute("scale", "float", aliases=("scaling", "softmax_scale")),
        Attribute("softcap", "float", 0.0, structural=True, switch=True),
    ),
    reference=paged_attention,
    kernel=True,
    formula="scaled_dot_product_attention with key, value = pool[block_table]",
    variant_axes=(("mask", "bias"), ("sinks", "value_heads"), ("softcap",)),
    check=_check_paged,
    admissible=_admissible_blocks,
)


def kv_cache_update(
    cache: torch.Tensor, update: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """Return ``cache`` with ``update`` at the positions ``position``, ``position + 1`` and so on.

    Args:
        cache: ``[batch, heads, places, dim]``.
        update: ``[batch, heads, length, dim]`` in the dtype of ``cache``.
        position: Position of the first token, for all or per batch row: ``[]`` or ``[batch]``,
            integer; ``0 <= position`` and ``position + length <= places``.

    Returns:
        The updated cache, with the shape and dtype of ``cache``.
    """
    batch, heads, length = update.shape[:3]
    start = position.to(torch.int64).reshape(-1, 1).expand(batch, 1)
    places = start + torch.arange(length, device=update.device)
    index = places[:, None, :, None].expand(batch, heads, length, update.shape[3])
    return cache.scatter(2, index, update)


def _check_cache(dims: Dims, attributes: Attributes) -> str:
    del attributes
    if wrong := wrong_rank(dims, cache=4, update=4):
        return wrong
    places, length = dims["cache"][2], dims["update"][2]
    if places is not None and length is not None and length > places:
        return f"update has {length} tokens, cache {places} places"
    return ""


def _admissible(inputs: Tensors) -> Tensors:
    """Return inputs with a position at which all tokens fit into the cache."""
    last = inputs["cache"].shape[2] - inputs["update"].shape[2]
    return {**inputs, "position": inputs["position"].abs() % (last + 1)}


KV_CACHE_UPDATE = Composite(
    name="kv_cache_update",
    inputs=(
        Input("cache", dims="B H S D"),
        Input("update", dims="B H T D"),
        Input("position", dtype="index", dims="B", aliases=("cache_position", "write_indices")),
    ),
    outputs=("updated",),
    reference=kv_cache_update,
    check=_check_cache,
    admissible=_admissible,
    kernel=True,
    formula="cache with cache[:, :, position + i] = update[:, :, i]",
)
