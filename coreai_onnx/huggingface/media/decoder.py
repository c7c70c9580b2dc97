"""The decoder of a model of pictures or sound, which takes embeddings instead of tokens."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import Cache

from coreai_onnx.export.compat.patches import patched
from coreai_onnx.huggingface.caches import cache_of, states_in_cache, tensors_of
from coreai_onnx.huggingface.decoders import BATCH, KEPT, SEQUENCE, Decoder
from coreai_onnx.huggingface.media.encoders import DEEPSTACK
from coreai_onnx.huggingface.transformers_names import CACHE

EMBEDS, TYPES = "inputs_embeds", "token_type_ids"
_DEEPSTACK_METHOD = "_deepstack_process"


class EmbeddingPart(torch.nn.Module):
    """The embeddings of tokens.

    Attributes:
        input_names: ``input_ids``.
        output_names: ``inputs_embeds``.
        slots: The tensors of a cache: none.
    """

    input_names, output_names, slots = ("input_ids",), (EMBEDS,), ()

    def __init__(self, model: Any) -> None:
        """Take the embeddings of a model."""
        super().__init__()
        self.embeddings = model.get_input_embeddings()

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings."""
        result: torch.Tensor = self.embeddings(input_ids)
        return result

    def example(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return example arguments."""
        del dtype
        return (torch.ones(2, 3, dtype=torch.int64),)

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims of `example`."""
        return ({0: BATCH, 1: SEQUENCE},)


class EmbeddedDecoder(Decoder):
    """A decoder that takes embeddings, in which features replace those of placeholders.

    Attributes:
        has_sections: Whether positions have three rows: of frames, rows and columns.
        takes_types: Whether it has the input ``token_type_ids``, which tells pictures from text.
        layers: The number of layers that features of pictures are added to.
    """

    def __init__(self, model: Any, layers: int = 0) -> None:
        """Find out what the decoder takes.

        Args:
            model: The model.
            layers: How many of its layers features of pictures are added to.
        """
        super().__init__(model)
        config = model.config.get_text_config(decoder=True)
        self.layers = layers
        rope = getattr(config, "rope_parameters", None) or {}
        self.has_sections = "mrope_section" in rope
        self.takes_types = TYPES in inspect.signature(model.forward).parameters
        further = [TYPES] if self.takes_types else []
        further += [DEEPSTACK] if layers else []
        place = self.input_names.index("attention_mask") + 1 + self.takes_positions
        self.input_names = [EMBEDS, *self.input_names[1:place], *further, *self.input_names[place:]]

    def first(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of tokens."""
        result: torch.Tensor = self.model.get_input_embeddings()(tokens)
        return result

    def forward(  # type: ignore[override]  # two further inputs
        self,
        inputs_embeds: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        deepstack: torch.Tensor | None,
        logits_to_keep: torch.Tensor | None,
        past: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Return the logits and the cache after the call."""
        cache = cache_of(self.slots, past, attention_mask.shape[1] - inputs_embeds.shape[1])
        further = {
            "position_ids": position_ids, TYPES: token_type_ids, KEPT: logits_to_keep
        }  # fmt: skip
        further = {name: x for name, x in further.items() if x is not None}
        with states_in_cache(self.model), _first_call(), self._deepstack(deepstack):
            result = self.model(
                inputs_embeds=inputs_embeds,
                attention_mask=attention_mask,
                use_cache=True,
                **{CACHE: cache},
                **further,
            )
        return (result.logits, *tensors_of(cache, self.slots))

    @contextmanager
    def _deepstack(self, features: torch.Tensor | None) -> Iterator[None]:
        """While active, features are added to the results of the first layers.

        transformers selects the places of pictures; here they are zero at all others, which needs
        no selection of an unknown length.
        """
        if features is None:
            yield
            return
        decoder = self.model.get_decoder()

        def with_features(_: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            return args, kwargs | {
                "deepstack_visual_embeds": list(features),
                "visual_pos_masks": features,
            }

        hook = decoder.register_forward_pre_hook(with_features, with_kwargs=True)
        try:
            with patched(type(decoder), _DEEPSTACK_METHOD, lambda _: _add):
                yield
        finally:
            hook.remove()

    def arguments(self, batch: int, length: int, past: int) -> tuple[Any, ...]:
        """Return arguments for a number of tokens after a number of cached ones."""
        ids, mask, positions, kept, cache = super().arguments(batch, length, past)
        if self.has_sections:
            positions = positions.expand(3, -1, -1)
        # Type 1 is that of pictures in some models and that of text in others.
        types = torch.ones_like(ids) if self.takes_types else None
        embeds = self.first(ids)
        deepstack = embeds.new_ones(self.layers, *embeds.shape) if self.layers else None
        return embeds, mask, positions, types, deepstack, kept, cache

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims of `example`."""
        ids, mask, positions, kept, past = super().dynamic_shapes()
        if self.has_sections:
            positions = {axis + 1: dim for axis, dim in ids.items()}
        types = ids if self.takes_types else None
        deepstack = {axis + 1: dim for axis, dim in ids.items()} if self.layers else None
        return ids, mask, positions, types, deepstack, kept, past


def _add(_: Any, hidden: torch.Tensor, mask: Any, features: torch.Tensor) -> torch.Tensor:
    del mask
    return hidden + features


@contextmanager
def _first_call() -> Iterator[None]:
    """While active, a cache is one of a first call, in which transformers reads types of tokens."""
    cls, name = Cache, "is_initialized"
    before = cls.__dict__[name]
    setattr(cls, name, property(lambda _: False))
    try:
        yield
    finally:
        setattr(cls, name, before)
