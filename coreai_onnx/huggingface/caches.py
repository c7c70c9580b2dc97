"""The cache of a decoder as inputs and outputs of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

from coreai_onnx.errors import ConversionError

EXAMPLE_PAST = 4
"""Length of the cache in the example inputs of an export."""


class GrowingLayer(DynamicLayer):
    """The keys and values of one layer, which grow by those of each call.

    A layer with a sliding window keeps all of them too: its mask hides those outside of the window,
    and all layers have the same length, as the runtimes expect.

    Args:
        keys: ``[batch, heads, past, head_dim]``; ``past`` may be 0.
        values: The same for the values.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Start with the keys and values of the calls before."""
        super().__init__()
        self.dtype, self.device = keys.dtype, keys.device
        self.keys, self.values, self.is_initialized = keys, values, True

    def get_seq_length(self) -> int:
        """Return the length, without a test for an empty cache, which would specialize it."""
        assert self.keys is not None
        return self.keys.shape[-2]  # a symbolic size while it is exported


@dataclass(frozen=True)
class CacheLayer:
    """Shapes of the keys and values of a layer, without batch and length.

    Attributes:
        heads: Number of key-value heads.
        key_dim: Size of a key.
        value_dim: Size of a value.
    """

    heads: int
    key_dim: int
    value_dim: int


def cache_of(tensors: Sequence[torch.Tensor]) -> DynamicCache:
    """Return a cache with keys and values: those of layer 0, of layer 1, and so on."""
    cache = DynamicCache()
    cache.layers += [
        GrowingLayer(keys, values) for keys, values in zip(tensors[::2], tensors[1::2], strict=True)
    ]
    return cache


def tensors_of(cache: Any) -> Iterator[torch.Tensor]:
    """Yield the keys and values of each layer of a cache."""
    for layer in cache.layers:
        yield layer.keys
        yield layer.values


def layers_of(model: torch.nn.Module) -> list[CacheLayer]:
    """Run a decoder on three tokens, and return the shapes of its cache.

    Raises:
        ConversionError: If a layer keeps something else than keys and values.
    """
    config: Any = model.config
    kinds = DynamicCache(config=config).layers
    if any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in kinds):
        raise ConversionError(
            f"{type(model).__name__}: some layers keep a recurrent state, not keys and values",
            advice="such models are not exported yet",
        )
    cache = DynamicCache()
    with torch.no_grad():
        model(input_ids=torch.tensor([[1, 2, 3]]), past_key_values=cache, use_cache=True)
    return layers_of_cache(cache)


def layers_of_cache(cache: Any) -> list[CacheLayer]:
    """Return the shapes of the keys and values of a cache."""
    return [
        CacheLayer(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3])
        for layer in cache.layers
    ]
