"""Key-value cache update: writes new keys or values to their positions in a cache."""

from __future__ import annotations

import torch

from coreai_onnx.composites.checks import Attributes, Dims, Tensors
from coreai_onnx.composites.declaration import Composite, Input


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


def _check(dims: Dims, attributes: Attributes) -> str:
    del attributes
    for name in ("cache", "update"):
        if len(dims[name]) != 4:
            return f"{name} has rank {len(dims[name])}, 4 is needed"
    places, length = dims["cache"][2], dims["update"][2]
    if places is not None and length is not None and length > places:
        return f"update has {length} tokens, cache {places} places"
    return ""


def _admissible(inputs: Tensors) -> Tensors:
    """Return inputs with a position at which all tokens fit into the cache."""
    last = inputs["cache"].shape[2] - inputs["update"].shape[2]
    return {**inputs, "position": inputs["position"].abs() % (last + 1)}


COMPOSITE = Composite(
    name="kv_cache_update",
    inputs=(
        Input("cache", dims="B H S D"),
        Input("update", dims="B H T D"),
        Input("position", dtype="index", dims="B", aliases=("cache_position", "write_indices")),
    ),
    outputs=("updated",),
    attributes=(),
    reference=kv_cache_update,
    check=_check,
    admissible=_admissible,
    kernel=True,
    formula="cache with cache[:, :, position + i] = update[:, :, i]",
)
