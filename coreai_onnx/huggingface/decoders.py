"""Decoders with a growing cache, with the input and output names that runtimes know."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from coreai_onnx.huggingface.caches import (
    EXAMPLE_PAST,
    CacheLayer,
    cache_of,
    layers_of,
    tensors_of,
)

BATCH, SEQUENCE, PAST = "batch_size", "sequence_length", "past_sequence_length"
TOTAL = f"{PAST} + {SEQUENCE}"
_TOTAL_DIM = "total_sequence_length"


PAST_NAMES = "past_key_values"
"""What the names of the inputs of a cache begin with."""


class Decoder(torch.nn.Module):
    """A decoder whose cache goes in and comes out.

    Attributes:
        input_names: Names of the inputs, in the order of the flattened arguments.
        output_names: Names of the outputs.
        layers: The shapes of the cache.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        """Find out what the decoder caches and whether it takes positions."""
        super().__init__()
        self.model = model
        self.layers = layers_of(model)
        self.takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        first = ["input_ids", "attention_mask", *(["position_ids"] if self.takes_positions else [])]
        self.input_names = [*first, *cache_names(PAST_NAMES, len(self.layers))]
        self.output_names = ["logits", *cache_names("present", len(self.layers))]

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor | None,
        past_key_values: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Return the logits and the cache after the call."""
        cache = cache_of(past_key_values)
        positions = {"position_ids": position_ids} if self.takes_positions else {}
        result = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=cache,
            use_cache=True,
            **positions,
        )
        return (result.logits, *tensors_of(cache))

    def example(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return example arguments: a batch of 2 with 3 tokens after 4 cached ones."""
        batch, length = 2, 3
        ids = torch.ones(batch, length, dtype=torch.int64)
        mask = torch.ones(batch, EXAMPLE_PAST + length, dtype=torch.int64)
        positions = torch.arange(EXAMPLE_PAST, EXAMPLE_PAST + length).repeat(batch, 1)
        past = [x for layer in self.layers for x in _example_layer(layer, batch, dtype)]
        return ids, mask, positions if self.takes_positions else None, past

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims of `example`."""
        ids = {0: BATCH, 1: SEQUENCE}
        past = [{0: BATCH, 2: PAST} for _ in range(2 * len(self.layers))]
        return ids, {0: BATCH, 1: _TOTAL_DIM}, ids if self.takes_positions else None, past


def cache_names(prefix: str, layers: int, of: str = "") -> list[str]:
    """Return ``prefix.0.key``, ``prefix.0.value``, ``prefix.1.key`` and so on.

    Args:
        prefix: The first part of the names.
        layers: Number of layers.
        of: The part before ``key``: ``encoder.`` or ``decoder.`` where there are both.
    """
    return [f"{prefix}.{i}.{of}{part}" for i in range(layers) for part in ("key", "value")]


def present_name(name: str) -> str:
    """Return the output with the new value of a cache: ``present.0.key``."""
    return name.replace(PAST_NAMES, "present", 1)


def _example_layer(layer: CacheLayer, batch: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [
        torch.zeros(batch, layer.heads, EXAMPLE_PAST, size, dtype=dtype)
        for size in (layer.key_dim, layer.value_dim)
    ]
