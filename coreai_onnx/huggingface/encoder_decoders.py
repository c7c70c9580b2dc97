"""Models of an encoder and a decoder: two files, the second with both caches.

The layout is optimum's: ``encoder_model.onnx`` and ``decoder_model_merged.onnx``. In the first call
of the decoder, ``use_cache_branch`` is false: it computes the keys and values of the encoder's
result. Later calls are given those of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import EncoderDecoderCache

from coreai_onnx.huggingface.caches import (
    EXAMPLE_PAST,
    CacheLayer,
    cache_of,
    layers_of_cache,
    tensors_of,
)
from coreai_onnx.huggingface.decoders import BATCH, PAST, PAST_NAMES, SEQUENCE, cache_names

SOURCE = "encoder_sequence_length"
FIRST = "use_cache_branch"
_EXAMPLE_SOURCE = 6


class EncoderPart(torch.nn.Module):
    """The encoder of a model, for text or for a spectrogram.

    Attributes:
        input_names: ``input_ids`` and ``attention_mask``, or ``input_features``.
        output_names: ``last_hidden_state``.
    """

    output_names = ("last_hidden_state",)

    def __init__(self, model: torch.nn.Module) -> None:
        """Take the encoder of a model."""
        super().__init__()
        self.model: Any = model
        self.encoder = self.model.get_encoder()
        self.hears = self.model.main_input_name == "input_features"
        self.input_names = ["input_features"] if self.hears else ["input_ids", "attention_mask"]

    def forward(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the last hidden state."""
        given = dict(zip(self.input_names, inputs, strict=True))
        state: torch.Tensor = self.encoder(**given, return_dict=True).last_hidden_state
        return state

    def example(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return example arguments."""
        if self.hears:
            config = self.model.config
            length = 2 * config.max_source_positions  # of a convolution with a stride of 2
            return ([torch.zeros(2, config.num_mel_bins, length, dtype=dtype)],)
        return ([torch.ones(2, _EXAMPLE_SOURCE, dtype=torch.int64) for _ in self.input_names],)

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims; the length of a spectrogram is fixed by the model."""
        dims = {0: BATCH} if self.hears else {0: BATCH, 1: SOURCE}
        return ([dims for _ in self.input_names],)


class DecoderPart(torch.nn.Module):
    """The decoder of a model, given the keys and values of the encoder's result.

    Attributes:
        input_names: Names of the inputs, in the order of the flattened arguments.
        output_names: Names of the outputs.
        own: The shapes of the cache of the decoder's tokens.
        cross: The shapes of the cache of the encoder's result.
    """

    def __init__(self, model: torch.nn.Module, encoder: EncoderPart) -> None:
        """Find out what the decoder caches."""
        super().__init__()
        self.model: Any = model
        self.has_mask = not encoder.hears
        with torch.no_grad():
            floating = next(p.dtype for p in model.parameters() if p.is_floating_point())
            (inputs,) = encoder.example(floating)
            state = encoder(inputs)
            cache = _computed(self.model, state)
        self.width, self.source = state.shape[2], state.shape[1]
        self.own = layers_of_cache(cache.self_attention_cache)
        self.cross = layers_of_cache(cache.cross_attention_cache)
        mask = ["encoder_attention_mask"] if self.has_mask else []
        self.input_names = [*mask, "input_ids", "encoder_hidden_states", *self.past_names]
        self.output_names = ["logits", *self._names("present", "decoder")]

    @property
    def past_names(self) -> list[str]:
        """Names of the cache: of the decoder's tokens, and then of the encoder's result."""
        return [*self._names(PAST_NAMES, "decoder"), *self.cross_names]

    @property
    def cross_names(self) -> list[str]:
        """Names of the cache of the encoder's result."""
        return self._names(PAST_NAMES, "encoder")

    def _names(self, prefix: str, part: str) -> list[str]:
        return cache_names(prefix, len(self.own), f"{part}.")

    def forward(
        self,
        mask: torch.Tensor | None,
        input_ids: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        past: Sequence[torch.Tensor],
        cross: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Return the logits and the cache of the decoder's tokens after the call."""
        cache = EncoderDecoderCache(cache_of(past), cache_of(cross))
        cache.is_updated = dict.fromkeys(range(len(self.cross)), True)
        result = self.model(
            attention_mask=mask,
            decoder_input_ids=input_ids,
            encoder_outputs=(encoder_hidden_states,),
            past_key_values=cache,
            use_cache=True,
        )
        return (result.logits, *tensors_of(cache.self_attention_cache))

    def example(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return example arguments: a batch of 2 with 3 tokens after 4 cached ones."""
        batch, source = 2, self.source
        mask = torch.ones(batch, source, dtype=torch.int64) if self.has_mask else None
        return (
            mask,
            torch.ones(batch, 3, dtype=torch.int64),
            torch.zeros(batch, source, self.width, dtype=dtype),
            _zeros(self.own, batch, EXAMPLE_PAST, dtype),
            _zeros(self.cross, batch, source, dtype),
        )

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims of `example`."""
        source = {1: SOURCE} if self.has_mask else {}
        return (
            {0: BATCH, **source} if self.has_mask else None,
            {0: BATCH, 1: SEQUENCE},
            {0: BATCH, **source},
            [{0: BATCH, 2: PAST} for _ in range(2 * len(self.own))],
            [{0: BATCH, **({2: SOURCE} if source else {})} for _ in range(2 * len(self.cross))],
        )


class CrossCache(torch.nn.Module):
    """The keys and values of the encoder's result in every layer of a decoder.

    Attributes:
        input_names: ``encoder_hidden_states``.
        output_names: The names of the cache, as inputs of the decoder.
    """

    input_names = ("encoder_hidden_states",)

    def __init__(self, decoder: DecoderPart) -> None:
        """Take the layers of a decoder."""
        super().__init__()
        self.decoder = decoder
        self.output_names = decoder.cross_names

    def forward(self, encoder_hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the keys and values."""
        cache = _computed(self.decoder.model, encoder_hidden_states)
        return tuple(tensors_of(cache.cross_attention_cache))

    def example(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return an example argument."""
        return (torch.zeros(2, self.decoder.source, self.decoder.width, dtype=dtype),)

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims of `example`."""
        return (self.decoder.dynamic_shapes()[2],)


def _computed(model: Any, encoder_hidden_states: torch.Tensor) -> EncoderDecoderCache:
    """Return the caches after one token."""
    cache = EncoderDecoderCache(cache_of([]), cache_of([]))
    ids = torch.zeros((encoder_hidden_states.shape[0], 1), dtype=torch.int64)
    model(
        decoder_input_ids=ids,
        encoder_outputs=(encoder_hidden_states,),
        past_key_values=cache,
        use_cache=True,
    )
    return cache


def _zeros(
    layers: Sequence[CacheLayer], batch: int, length: int, dtype: torch.dtype
) -> list[torch.Tensor]:
    return [
        torch.zeros(batch, layer.heads, length, size, dtype=dtype)
        for layer in layers
        for size in (layer.key_dim, layer.value_dim)
    ]
