"""Models of an encoder and a decoder: two files, the second with both caches.

The layout is optimum's: ``encoder_model.onnx`` and ``decoder_model_merged.onnx``. In the first call
of the decoder, ``use_cache_branch`` is false: it computes the keys and values of the encoder's
result. Later calls are given those of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.caches import Slot, cache_of, slots_of_cache, tensors_of
from coreai_onnx.huggingface.decoders import BATCH, SEQUENCE, cache_dims
from coreai_onnx.huggingface.heads.inputs import SAMPLES_OF_EXAMPLE, image_size, samples_dim
from coreai_onnx.huggingface.transformers_names import CACHE

SOURCE = "encoder_sequence_length"
FIRST = "use_cache_branch"
_EXAMPLE_SOURCE = 6


@dataclass
class _Encoded(BaseModelOutput):
    """The result of an encoder, of one with experts too.

    Attributes:
        router_logits: Which experts were chosen, which the decoder passes on.
        router_probs: The same, as transformers 5.0 calls it.
        attention_mask: Which states the decoder of Moonshine reads; None: all.
    """

    router_logits: tuple[torch.Tensor, ...] | None = None
    router_probs: tuple[torch.Tensor, ...] | None = None
    attention_mask: torch.Tensor | None = None


class EncoderPart(torch.nn.Module):
    """The encoder of a model, for text, a spectrogram, samples of sound or a picture.

    Attributes:
        input_names: ``input_ids`` and ``attention_mask``, ``input_features``, ``input_values`` or
            ``pixel_values``.
        output_names: ``last_hidden_state``.
        slots: The tensors of the cache: none.
    """

    output_names = ("last_hidden_state",)
    slots = ()

    def __init__(self, model: Any) -> None:
        """Take the encoder of a model.

        Raises:
            ModelSourceError: If it takes something else than text, pictures, the spectrograms of
                Whisper or the samples of Moonshine.
        """
        super().__init__()
        self.model = model
        name = model.main_input_name
        # Whisper takes spectrograms, whose bins its configuration names, Moonshine samples. Of
        # pictures, a model of two others has a configuration of its encoder.
        known = {"input_ids": "", "pixel_values": "encoder"}.get(name, "num_mel_bins")
        is_known = not known or hasattr(model.config, known)
        if not is_known and model.config.model_type != "moonshine":
            raise ModelSourceError(
                f"{type(model).__name__}: an encoder of {name} is not exported yet; of speech "
                "models with a decoder, Whisper and Moonshine are"
            )
        self.encoder: Any = self.model.get_encoder()
        self.takes_text, self.has_samples = name == "input_ids", name == "input_values"
        self.input_names = ["input_ids", "attention_mask"] if self.takes_text else [name]

    def forward(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the last hidden state."""
        arguments = dict(zip(self.input_names, inputs, strict=True))
        state: torch.Tensor = self.encoder(**arguments, return_dict=True).last_hidden_state
        return state

    def example(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return example arguments."""
        if self.has_samples:
            return ([torch.zeros(2, SAMPLES_OF_EXAMPLE, dtype=dtype)],)
        config = self.model.config
        if self.model.main_input_name == "pixel_values":
            return ([torch.zeros(2, *image_size(config.encoder), dtype=dtype)],)
        if not self.takes_text:
            length = 2 * config.max_source_positions  # of a convolution with a stride of 2
            return ([torch.zeros(2, config.num_mel_bins, length, dtype=dtype)],)
        return ([torch.ones(2, _EXAMPLE_SOURCE, dtype=torch.int64) for _ in self.input_names],)

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims; the sizes of spectrograms and pictures are fixed."""
        dims: dict[int, Any] = {0: BATCH}
        if self.has_samples:
            dims[1] = samples_dim()
        elif self.takes_text:
            dims[1] = SOURCE
        return ([dims for _ in self.input_names],)


class DecoderPart(torch.nn.Module):
    """The decoder of a model, given the keys and values of the encoder's result.

    Attributes:
        input_names: Names of the inputs, in the order of the flattened arguments.
        output_names: Names of the outputs.
        own: The cache of the decoder's tokens.
        cross: The cache of the encoder's result.
        slots: The tensors of both.
    """

    def __init__(self, model: torch.nn.Module, encoder: EncoderPart) -> None:
        """Find out what the decoder caches.

        Raises:
            ModelSourceError: If it does not take several tokens with a cache.
        """
        super().__init__()
        self.model: Any = model
        self.has_mask = encoder.takes_text
        # Pictures and the sound of Whisper have a fixed length.
        self.source_dims = {1: SOURCE} if encoder.takes_text or encoder.has_samples else {}
        with torch.no_grad():
            # Quantized models also have parameters that are integers.
            floating = next(p.dtype for p in model.parameters() if p.is_floating_point())
            (inputs,) = encoder.example(floating)
            state = encoder(inputs)
            # The shapes of the caches follow from a call: configurations name them in different
            # ways.
            cache = _computed(self.model, state)
        self.width, self.source = state.shape[2], state.shape[1]
        self.own: list[Slot] = slots_of_cache(cache.self_attention_cache, "decoder.")
        self.cross: list[Slot] = slots_of_cache(cache.cross_attention_cache, "encoder.")
        self.slots = (*self.own, *self.cross)
        mask = ["encoder_attention_mask"] if self.has_mask else []
        past = [slot.past for slot in self.slots]
        self.input_names = [*mask, "input_ids", "encoder_hidden_states", *past]
        self.output_names = ["logits", *(slot.present for slot in self.own)]
        what = (
            f"{type(model).__name__} is not exported: it does not run on 3 tokens after cached ones"
        )
        with torch.no_grad(), failures_as(ModelSourceError, what):
            # Some decoders take one token beside a cache only, which an export would notice late.
            self(*self.example(floating))

    def forward(
        self,
        mask: torch.Tensor | None,
        input_ids: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        past: Sequence[torch.Tensor],
        cross: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Return the logits and the cache of the decoder's tokens after the call."""
        cache = EncoderDecoderCache(cache_of(self.own, past), cache_of(self.cross, cross))
        # With this flag, transformers reads the keys and values of the encoder's result instead of
        # computing them.
        cache.is_updated = {slot.layer: True for slot in self.cross}
        result = self.model(
            attention_mask=mask,
            decoder_input_ids=input_ids,
            encoder_outputs=_Encoded(last_hidden_state=encoder_hidden_states),
            use_cache=True,
            **{CACHE: cache},
        )
        return (result.logits, *tensors_of(cache.self_attention_cache, self.own))

    def example(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return example arguments: a batch of 2 with 3 tokens after 4 cached ones."""
        batch, source = 2, self.source
        mask = torch.ones(batch, source, dtype=torch.int64) if self.has_mask else None
        return (
            mask,
            torch.ones(batch, 3, dtype=torch.int64),
            torch.zeros(batch, source, self.width, dtype=dtype),
            [slot.example(batch) for slot in self.own],
            [slot.example(batch, source) for slot in self.cross],
        )

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims of `example`."""
        source = self.source_dims
        return (
            {0: BATCH, **source} if self.has_mask else None,
            {0: BATCH, 1: SEQUENCE},
            {0: BATCH, **source},
            [cache_dims(slot) for slot in self.own],
            [cache_dims(slot, source.get(1)) for slot in self.cross],
        )


class CrossCache(torch.nn.Module):
    """The keys and values of the encoder's result in every layer of a decoder.

    Attributes:
        input_names: ``encoder_hidden_states``.
        output_names: The names of the cache, as inputs of the decoder.
        slots: The tensors of a cache that it takes: none.
    """

    input_names = ("encoder_hidden_states",)
    slots = ()

    def __init__(self, decoder: DecoderPart) -> None:
        """Take the layers of a decoder."""
        super().__init__()
        self.decoder = decoder
        self.output_names = [slot.past for slot in decoder.cross]

    def forward(self, encoder_hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the keys and values."""
        cache = _computed(self.decoder.model, encoder_hidden_states)
        return tuple(tensors_of(cache.cross_attention_cache, self.decoder.cross))

    def example(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return an example argument."""
        return (torch.zeros(2, self.decoder.source, self.decoder.width, dtype=dtype),)

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims of `example`."""
        return (self.decoder.dynamic_shapes()[2],)


def _computed(model: Any, encoder_hidden_states: torch.Tensor) -> EncoderDecoderCache:
    """Return the caches after one token."""
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    # Any token serves: keys and values of the encoder's result do not depend on it.
    ids = torch.zeros((encoder_hidden_states.shape[0], 1), dtype=torch.int64)
    model(
        decoder_input_ids=ids,
        encoder_outputs=_Encoded(last_hidden_state=encoder_hidden_states),
        use_cache=True,
        **{CACHE: cache},
    )
    return cache
