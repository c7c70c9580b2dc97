"""Caches of keys and values: attention to blocks and to codes, and updates."""

from __future__ import annotations

import torch

from coreai_onnx.composites.attention import (
    ATTRIBUTES,
    VARIANT_AXES,
    canonical_attributes,
    scaled_dot_product_attention,
    wrong_alignment,
    wrong_heads,
)
from coreai_onnx.composites.checks import (
    Attributes,
    Dims,
    Tensors,
    compute_dtype,
    wrong_rank,
)
from coreai_onnx.composites.declaration import Attribute, Composite, Input

CACHE_BITS = (8, 4)
"""Sizes of the codes of keys and values."""
_HALF_BYTE = 4


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


def _wrong_bits(attributes: Attributes) -> str:
    bits = attributes["bits"]
    return "" if bits in CACHE_BITS else f"bits must be 8 or 4, got {bits}"


def _check_nbits(dims: Dims, attributes: Attributes) -> str:
    ranks = dict.fromkeys(("query", "key_codes", "key_scales", "value_codes", "value_scales"), 4)
    wrong = wrong_rank(dims, **ranks) or wrong_alignment(attributes) or _wrong_bits(attributes)
    groups = {} if wrong else {name: dims[name][1] for name in ("key_codes", "value_codes")}
    return wrong or wrong_heads(dims["query"][1], groups)


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
    attributes=(*ATTRIBUTES, Attribute("bits", "int", 8, structural=True)),
    reference=attention_nbits,
    kernel=True,
    formula="softmax(mask(scale * query @ key^T)) @ value, where (codes - 2^(bits-1)) * scales",
    variant_axes=(*VARIANT_AXES, ("bits4",)),
    check=_check_nbits,
    canonical=canonical_attributes,
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
    key, value = (rows_of_blocks(pool, block_table) for pool in (key_pool, value_pool))
    return scaled_dot_product_attention(
        query, key, value, attn_mask, sinks, scale=scale, softcap=softcap
    )


def rows_of_blocks(pool: torch.Tensor, block_table: torch.Tensor) -> torch.Tensor:
    """Return ``[batch, heads, table_length * tokens, dim]``."""
    return pool[block_table].flatten(1, 2).transpose(1, 2)


def _check_paged(dims: Dims, attributes: Attributes) -> str:
    codes = [name for name in dims if name.endswith(("_codes", "_scales"))]
    pools = ["key_codes", "value_codes"] if codes else ["key_pool", "value_pool"]
    wrong = wrong_rank(dims, **dict.fromkeys(("query", *pools, *codes), 4), block_table=2)
    wrong = wrong or (_wrong_bits(attributes) if codes else "")
    if wrong:
        return wrong
    tokens = dims[pools[0]][1]
    # The kernel finds the block of a token by a shift.
    if tokens is not None and (tokens < 1 or tokens & (tokens - 1)):
        return f"the tokens of a block must be a power of two, got {tokens}"
    return wrong_heads(dims["query"][1], {name: dims[name][2] for name in pools})


def _admissible_blocks(inputs: Tensors) -> Tensors:
    """Return inputs with blocks that there are."""
    blocks = next(x for name, x in inputs.items() if name.startswith("key_")).shape[0]
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


def paged_attention_nbits(
    query: torch.Tensor,
    key_codes: torch.Tensor,
    key_scales: torch.Tensor,
    value_codes: torch.Tensor,
    value_scales: torch.Tensor,
    block_table: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    *,
    scale: float | torch.Tensor | None = None,
    softcap: float | torch.Tensor = 0.0,
    bits: int = 8,
) -> torch.Tensor:
    """Return attention to keys and values of few bits in blocks.

    This is `attention_nbits` to the codes and scales that a row has in its blocks, as those of
    `paged_attention`.

    Args:
        query: ``[batch, heads, query_length, head_dim]``, floating.
        key_codes: uint8, ``[blocks, tokens, key_heads, head_dim * bits / 8]``.
        key_scales: ``[blocks, tokens, key_heads, 1]``, in the dtype of ``query``.
        value_codes: uint8, ``[blocks, tokens, value_heads, value_dim * bits / 8]``.
        value_scales: ``[blocks, tokens, value_heads, 1]``, in the dtype of ``query``.
        block_table: As for `paged_attention`.
        attn_mask: The same.
        sinks: The same.
        scale: The same.
        softcap: The same.
        bits: Size of a code: 8 or 4.

    Returns:
        ``[batch, heads, query_length, value_dim]`` in the dtype of ``query``.
    """
    keys, scales_of_keys, values, scales_of_values = (
        rows_of_blocks(pool, block_table)
        for pool in (key_codes, key_scales, value_codes, value_scales)
    )
    return attention_nbits(
        query, keys, scales_of_keys, values, scales_of_values, attn_mask, sinks,
        scale=scale, softcap=softcap, bits=bits,
    )  # fmt: skip


PAGED_ATTENTION_NBITS = Composite(
    name="paged_attention_nbits",
    inputs=(
        Input("query", dims="B H T D", aliases=("q",)),
        Input("key_codes", dtype="uint8", dims="N P K C"),
        Input("key_scales", dims="N P K 1"),
        Input("value_codes", dtype="uint8", dims="N P V|K E"),
        Input("value_scales", dims="N P V|K 1"),
        *PAGED_ATTENTION.inputs[3:],
    ),
    outputs=("output",),
    output_dims=("?",),
    attributes=(*PAGED_ATTENTION.attributes, Attribute("bits", "int", 8, structural=True)),
    reference=paged_attention_nbits,
    kernel=True,
    formula="attention_nbits with codes, scales = pool[block_table]",
    variant_axes=(*PAGED_ATTENTION.variant_axes, ("bits4",)),
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
