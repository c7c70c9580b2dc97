"""The decoder of a model of pictures or sound, which takes embeddings instead of tokens."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from transformers import Cache

from coreai_onnx.export.compat.patches import patched
from coreai_onnx.huggingface.caches import cache_of, states_in_cache, tensors_of
from coreai_onnx.huggingface.decoders import BATCH, KEPT, SEQUENCE, Decoder
from coreai_onnx.huggingface.media.encoders import DEEPSTACK
from coreai_onnx.huggingface.media.model_part import ModelInput, ModelPart
from coreai_onnx.huggingface.transformers_names import CACHE

EMBEDS, TYPES = "inputs_embeds", "token_type_ids"
_DEEPSTACK_METHOD = "_deepstack_process"
_FROM_EMBEDDINGS = -2
"""The default type of tokens: the file finds pictures by the token that begins them."""
_DEFAULT_TYPES = {"paligemma": 0, "git": 0, "gemma3": _FROM_EMBEDDINGS}
"""By model type. 0 is text in GIT, and a prefix in PaliGemma, which no later call has."""
_SAME_TOKEN = 1e-3
"""The squared distance of embeddings of one token, of the squared norm: 16 bits lose 1e-5."""


def embedding_part(model: Any) -> ModelPart:
    """Return the embeddings of tokens, with those of positions where these are added to them."""
    embeddings = getattr(model, "embeddings", None)
    layer = model.get_input_embeddings() if embeddings is None else embeddings
    names = ["input_ids"] if embeddings is None else ["input_ids", "position_ids"]
    inputs = [ModelInput(name, (2, 3), {0: BATCH, 1: SEQUENCE}, 1) for name in names]
    return ModelPart(layer, lambda *given: [layer(*given)], inputs, [EMBEDS])


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
        self.begin: torch.Tensor | None = None
        if self.takes_types and _DEFAULT_TYPES.get(model.config.model_type) == _FROM_EMBEDDINGS:
            with torch.no_grad():
                self.begin = self.first(torch.tensor(model.config.boi_token_id))
        place = self.input_names.index("attention_mask") + 1 + self.takes_positions
        self.input_names = [EMBEDS, *self.input_names[1:place], *further, *self.input_names[place:]]

    def finish(self, model: ir.Model) -> None:
        """Make inputs of a converted decoder optional; it is changed in place."""
        super().finish(model)
        default = _DEFAULT_TYPES.get(self.model.config.model_type)
        if self.takes_types and default is not None:
            _make_optional(model.graph, TYPES, default)

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
        if self.begin is not None and token_type_ids is not None:
            count = self.model.config.mm_tokens_per_image
            types = _types_after(inputs_embeds, self.begin, count)
            token_type_ids = torch.where(token_type_ids == _FROM_EMBEDDINGS, types, token_type_ids)
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


def _types_after(embeds: torch.Tensor, begin: torch.Tensor, count: int) -> torch.Tensor:
    """Return the type 1 for the tokens of pictures, and 0 for those of text.

    Args:
        embeds: The embeddings of tokens and features of pictures, ``[batch, length, size]``.
        begin: The embedding of the token that precedes a picture.
        count: The number of features of a picture.
    """
    distance = (embeds - begin).square().sum(-1)
    begins = (distance < _SAME_TOKEN * begin.square().sum()).long().cumsum(1)
    # Zeros on the left: how many pictures began before a token, and before those of its picture.
    before = torch.nn.functional.pad(begins, (count + 1, 0))
    length = begins.shape[1]
    return before[:, count : count + length] - before[:, :length]


def _make_optional(graph: ir.Graph, name: str, default: int) -> None:
    """Give an input of ``[batch, length]`` integers a default for all tokens.

    An input with an initializer is optional in ONNX; Expand gives it the size of the embeddings.
    """
    (value,) = (one for one in graph.inputs if one.name == name)
    tensor = ir.tensor(np.full((1, 1), default, np.int64), name=name)
    optional = ir.Value(name=name, type=value.type, shape=value.shape, const_value=tensor)
    sizes = ir.node("Shape", [graph.inputs[0]], {"start": 0, "end": 2})
    expand = ir.node("Expand", [optional, sizes.outputs[0]])
    for node in (sizes, expand):
        node.name = node.outputs[0].name = f"{name}.{node.op_type}"
    # Shape inference has run already, and readers rely on its dims.
    expand.outputs[0].type, expand.outputs[0].shape = value.type, value.shape
    ir.convenience.replace_all_uses_with(value, expand.outputs[0])
    graph.inputs[list(graph.inputs).index(value)] = optional
    graph.initializers[name] = optional
    graph.insert_before(next(iter(graph)), [sizes, expand])


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
