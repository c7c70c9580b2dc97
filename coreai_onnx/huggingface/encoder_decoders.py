"""Models of an encoder and a decoder: two files, the second with both caches.

The layout is optimum's: ``encoder_model.onnx`` and ``decoder_model_merged.onnx``. In the first call
of the decoder, ``use_cache_branch`` is false: it computes the keys and values of the encoder's
result. Later calls are given those of the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import Dim
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.caches import Slot, cache_of, slots_of_cache, tensors_of
from coreai_onnx.huggingface.decoders import BATCH, PAST, SEQUENCE, cache_dims
from coreai_onnx.huggingface.heads.inputs import SAMPLES_OF_EXAMPLE, image_size, samples_dim
from coreai_onnx.huggingface.media.decoder import EMBEDS
from coreai_onnx.huggingface.media.examples import spectrogram_size
from coreai_onnx.huggingface.transformers_names import CACHE, with_attention

SOURCE = "encoder_sequence_length"
FIRST = "use_cache_branch"
ATTENTIONS = "cross_attentions"
"""The outputs that tell which part of the encoder's result each token attends to."""
_ATTENDING = "encoder_attn"
_EXAMPLE_SOURCE, _EXAMPLE_FRAMES = 6, 40
_FEWEST_SAMPLES = 1279
"""Two frames of the convolutions of Moonshine, whose attention has another form for one."""


@dataclass
class EncodedSource(BaseModelOutput):
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
        input_names: ``input_ids`` and ``attention_mask``, ``input_features``, of Speech2Text with
            ``attention_mask``, ``input_values`` or ``pixel_values``.
        output_names: ``last_hidden_state``.
        slots: The tensors of the cache: none.
    """

    output_names: Sequence[str] = ("last_hidden_state",)
    slots = ()

    def __init__(self, model: Any) -> None:
        """Take the encoder of a model.

        Raises:
            ModelSourceError: If it takes something else than text, pictures, the spectrograms of
                Whisper or Speech2Text, or the samples of Moonshine.
        """
        super().__init__()
        self.model = model
        name = model.main_input_name
        kind = model.config.model_type
        self.has_samples, self.has_frames = kind == "moonshine", kind == "speech_to_text"
        # Whisper takes spectrograms, whose bins its configuration names. Of pictures, a model of
        # two others has a configuration of its encoder.
        setting = {"input_ids": "", EMBEDS: "", "pixel_values": "encoder"}.get(name, "num_mel_bins")
        has_setting = not setting or hasattr(model.config, setting)
        is_known = self.has_samples or self.has_frames or has_setting
        if not is_known:
            raise ModelSourceError(
                f"{type(model).__name__}: an encoder of {name} is not exported yet; of speech "
                "models with a decoder, Whisper, Moonshine and Speech2Text are"
            )
        self.encoder: Any = self.model.get_encoder()
        self.takes_embeds = name == EMBEDS
        self.takes_text = self.takes_embeds or name == "input_ids"
        self.has_mask = self.takes_text or self.has_frames
        self.input_names = [name, "attention_mask"] if self.has_mask else [name]

    def forward(self, inputs: Sequence[torch.Tensor]) -> Any:
        """Return the outputs."""
        return self.state(inputs)

    def state(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
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
        if self.has_frames:
            bins = config.input_feat_per_channel * config.input_channels
            frames = torch.zeros(2, _EXAMPLE_FRAMES, bins, dtype=dtype)
            return ([frames, torch.ones(2, _EXAMPLE_FRAMES, dtype=torch.int64)],)
        if not self.takes_text:
            return ([torch.zeros(2, *spectrogram_size(config), dtype=dtype)],)
        inputs = [torch.ones(2, _EXAMPLE_SOURCE, dtype=torch.int64) for _ in self.input_names]
        if self.takes_embeds:
            inputs[0] = torch.zeros(*inputs[0].shape, config.hidden_size, dtype=dtype)
        return (inputs,)

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims; the sizes of pictures and Whisper's spectrograms are fixed."""
        dims: dict[int, Any] = {0: BATCH}
        if self.has_samples:
            dims[1] = samples_dim(_FEWEST_SAMPLES)
        elif self.has_mask:
            dims[1] = SOURCE if self.takes_text else frames_dim(self.model.config)
        return ([dims for _ in self.input_names],)


def frames_dim(config: Any) -> Any:
    """Return the dynamic dim of the frames of Speech2Text, limited by its table of positions."""
    stride = 2**config.num_conv_layers
    return Dim("number_of_frames", max=stride * config.max_source_positions)


class DecoderPart(torch.nn.Module):
    """The decoder of a model, given the keys and values of the encoder's result.

    Attributes:
        input_names: Names of the inputs, in the order of the flattened arguments.
        output_names: Names of the outputs.
        own: The cache of the decoder's tokens.
        cross: The cache of the encoder's result.
        slots: The tensors of both.
        masks_state: Whether the hidden state is multiplied by the mask before it is read.
        cached: What the tokens of the example follow, for messages.
    """

    masks_state = False
    cached = "cached ones"
    token_names: Sequence[str] = ("input_ids",)
    result_names: Sequence[str] = ("logits",)

    def __init__(
        self, model: torch.nn.Module, encoder: EncoderPart, *, with_attentions: bool = False
    ) -> None:
        """Find out what the decoder caches.

        Args:
            model: The model.
            encoder: Its encoder.
            with_attentions: Whether the attention to the encoder's result is an output of each
                layer, ``cross_attentions.0`` and so on, ``[batch, heads, sequence, source]``.

        Raises:
            ModelSourceError: If it does not take several tokens with a cache, or its layers do not
                return their attention.
        """
        super().__init__()
        self.model: Any = model
        self._attending: list[torch.nn.Module] = []
        self.has_mask, self.takes_embeds = encoder.has_mask, encoder.takes_embeds
        # Pictures and the sound of Whisper have a fixed length.
        self.source_dims = {1: SOURCE} if encoder.has_mask or encoder.has_samples else {}
        with torch.no_grad():
            # Quantized models also have parameters that are integers.
            floating = next(p.dtype for p in model.parameters() if p.is_floating_point())
            (inputs,) = encoder.example(floating)
            state = encoder.state(inputs)
            # The shapes of the caches follow from a call: configurations name them in different
            # ways.
            self.width, self.source = state.shape[2], state.shape[1]
            cache = self.caches(state)
        # The model reads the mask of its frames, of which several make one state.
        config = self.model.config
        self.mask_dims = {1: frames_dim(config)} if encoder.has_frames else self.source_dims
        longest = self.longest(config)
        self.token_dims = {1: Dim(SEQUENCE, max=longest) if longest else SEQUENCE}
        self.past_dim = Dim(PAST, max=longest) if longest else PAST
        self.mask_length = inputs[-1].shape[1]
        self.own: list[Slot] = slots_of_cache(cache.self_attention_cache, "decoder.")
        self.cross: list[Slot] = slots_of_cache(cache.cross_attention_cache, "encoder.")
        self.slots = (*self.own, *self.cross)
        mask = ["encoder_attention_mask"] if self.has_mask else []
        past = [slot.past for slot in self.slots]
        tokens = [EMBEDS] if self.takes_embeds else self.token_names
        self.input_names = [*mask, *tokens, "encoder_hidden_states", *past]
        self.output_names = [*self.result_names, *(slot.present for slot in self.own)]
        if with_attentions:
            self._attending = [x for name, x in model.named_modules() if name.endswith(_ATTENDING)]
            self.output_names += [f"{ATTENTIONS}.{i}" for i in range(len(self._attending))]
            if not self._attending:
                raise ModelSourceError(
                    f"{type(model).__name__}: include {ATTENTIONS!r} needs a decoder whose layers "
                    "return their attention to the sound, as Whisper's"
                )
        name = type(model).__name__
        what = f"{name} is not exported: it does not run on 3 tokens after {self.cached}"
        with torch.no_grad(), failures_as(ModelSourceError, what):
            # Some decoders take one token beside a cache only, which an export would notice late.
            self(*self.example(floating))

    def forward(
        self,
        mask: torch.Tensor | None,
        tokens: Any,
        encoder_hidden_states: torch.Tensor,
        past: Sequence[torch.Tensor],
        cross: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Return the results and the cache of the decoder's tokens after the call."""
        cache = EncoderDecoderCache(cache_of(self.own, past), cache_of(self.cross, cross))
        # With this flag, transformers reads the keys and values of the encoder's result instead of
        # computing them.
        cache.is_updated = {slot.layer: True for slot in self.cross}
        with _recorded(self._attending) as attentions:
            results = self.results(mask, tokens, encoder_hidden_states, cache)
        return (*results, *tensors_of(cache.self_attention_cache, self.own), *attentions)

    def results(
        self, mask: torch.Tensor | None, tokens: Any, state: torch.Tensor, cache: Any
    ) -> Sequence[torch.Tensor]:
        """Return the results for tokens, and extend a cache by them."""
        argument = "decoder_inputs_embeds" if self.takes_embeds else "decoder_input_ids"
        result = self.model(
            **{argument: tokens},
            attention_mask=mask,
            encoder_outputs=EncodedSource(last_hidden_state=state),
            use_cache=True,
            **{CACHE: cache},
        )
        return (result.logits,)

    def caches(self, state: torch.Tensor, mask: torch.Tensor | None = None) -> EncoderDecoderCache:
        """Return the caches after one token."""
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        # Any token serves: keys and values of the encoder's result do not depend on it.
        self.results(mask, self.tokens(state.shape[0], 1, state.dtype), state, cache)
        return cache

    def longest(self, config: Any) -> int | None:
        """Return the length of a table of positions, which limits an export; None for others."""
        is_limited = config.model_type == "speech_to_text"
        return config.max_target_positions if is_limited else None

    def tokens(self, batch: int, length: int, dtype: torch.dtype) -> Any:
        """Return example tokens."""
        if self.takes_embeds:
            return torch.zeros(batch, length, self.width, dtype=dtype)
        return torch.ones(batch, length, dtype=torch.int64)

    def dims_of_tokens(self) -> Any:
        """Return the dynamic dims of `tokens`."""
        return {0: BATCH, **self.token_dims}

    def example(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return example arguments: a batch of 2 with 3 tokens after 4 cached ones."""
        batch, source = 2, self.source
        mask = torch.ones(batch, self.mask_length, dtype=torch.int64) if self.has_mask else None
        return (
            mask,
            self.tokens(batch, 3, dtype),
            torch.zeros(batch, source, self.width, dtype=dtype),
            [slot.example(batch) for slot in self.own],
            [slot.example(batch, source) for slot in self.cross],
        )

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims of `example`."""
        source = self.source_dims
        return (
            {0: BATCH, **self.mask_dims} if self.has_mask else None,
            self.dims_of_tokens(),
            {0: BATCH, **source},
            [cache_dims(slot, self.past_dim) for slot in self.own],
            [cache_dims(slot, source.get(1)) for slot in self.cross],
        )


@contextmanager
def _recorded(layers: Sequence[torch.nn.Module]) -> Iterator[list[torch.Tensor]]:
    """While active, append the probabilities that attention layers compute to a list."""
    attentions: list[torch.Tensor] = []
    hooks = [x.register_forward_hook(lambda *call: attentions.append(call[-1][1])) for x in layers]
    try:
        # Fused attention returns no probabilities.
        with with_attention(layers, "eager"):
            yield attentions
    finally:
        for hook in hooks:
            hook.remove()


class CrossCache(torch.nn.Module):
    """The keys and values of the encoder's result in every layer of a decoder.

    Attributes:
        input_names: ``encoder_hidden_states``, and ``encoder_attention_mask`` if that masks it.
        output_names: The names of the cache, as inputs of the decoder.
        slots: The tensors of a cache that it takes: none.
    """

    slots = ()

    def __init__(self, decoder: DecoderPart) -> None:
        """Take the layers of a decoder."""
        super().__init__()
        self.decoder = decoder
        mask = ["encoder_attention_mask"] if decoder.masks_state else []
        self.input_names = ["encoder_hidden_states", *mask]
        self.output_names = [slot.past for slot in decoder.cross]

    def forward(
        self, encoder_hidden_states: torch.Tensor, mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Return the keys and values."""
        cache = self.decoder.caches(encoder_hidden_states, mask)
        return tuple(tensors_of(cache.cross_attention_cache, self.decoder.cross))

    def example(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return example arguments."""
        mask, _, state, *_ = self.decoder.example(dtype)
        return (state, mask) if self.decoder.masks_state else (state,)

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims of `example`."""
        mask, _, state, *_ = self.decoder.dynamic_shapes()
        return (state, mask) if self.decoder.masks_state else (state,)
