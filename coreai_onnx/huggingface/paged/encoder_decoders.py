"""Models of an encoder and a decoder, with both caches of the decoder in blocks of pools.

The encoder's file returns the keys and values of its result, which the decoder writes to blocks in
the first call of a row. Later calls are given none, so that all calls are of one file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import EncoderDecoderCache

from coreai_onnx.errors import ConversionError, ModelSourceError, failures_as
from coreai_onnx.huggingface.caches import cache_of, tensors_of
from coreai_onnx.huggingface.decoders import BATCH, SEQUENCE
from coreai_onnx.huggingface.encoder_decoders import (
    SOURCE,
    DecoderPart,
    EncodedSource,
    EncoderPart,
)
from coreai_onnx.huggingface.paged.decoders import (
    BLOCK,
    SPARE,
    TABLE,
    Pages,
    check_logits,
    in_pages,
    pool_of,
)
from coreai_onnx.huggingface.transformers_names import CACHE, offsets_by_row
from coreai_onnx.huggingface.verification import random_tokens
from coreai_onnx.model.contract import (
    BLOCK_TABLE,
    BLOCKS,
    CACHE_LENGTHS,
    ENCODED,
    SOURCE_BLOCKS,
    SOURCE_LENGTHS,
    SOURCE_TABLE,
)

_SOURCES, _TARGETS, _NEW = (5, 40, 18), (19, 1, 6), 2
"""States and cached tokens of the rows that are checked, and new tokens."""


class PagedDecoderPart(DecoderPart):
    """The decoder of a model with an encoder of text, with both caches in blocks of pools."""

    cached = "cached ones of several lengths"

    def __init__(self, model: torch.nn.Module, encoder: EncoderPart) -> None:
        """Find out what the decoder caches.

        Args:
            model: The model.
            encoder: Its encoder.

        Raises:
            ModelSourceError: If the encoder reads something else than token ids, or the decoder
                does not run with such a cache.
        """
        name = type(model).__name__
        if encoder.takes_embeds or not encoder.takes_text:
            raise ModelSourceError(f"{name} has no paged cache: its encoder does not read text")
        if hasattr(model.config, "expert_capacity"):
            raise ModelSourceError(
                f"{name} has no paged cache: its experts take a number of tokens of all rows"
            )
        super().__init__(model, encoder)
        self.encoded_names = [f"{ENCODED}{slot.layer}.{slot.kind}" for slot in self.cross]
        first = ["input_ids", BLOCK_TABLE, CACHE_LENGTHS, SOURCE_TABLE, SOURCE_LENGTHS]
        self.input_names = [*first, *self.encoded_names, *(slot.past for slot in self.slots)]
        self.output_names = ["logits", *(slot.present for slot in self.slots)]

    # The inputs are those of another file, and all callers pass them by position.
    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        block_table: torch.Tensor,
        cache_lengths: torch.Tensor,
        source_table: torch.Tensor,
        source_lengths: torch.Tensor,
        encoded: Sequence[torch.Tensor],
        past: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Return the logits and the pools after the call."""
        count = len(self.own)
        pages = Pages(block_table, cache_lengths, input_ids.shape[1])
        source = Pages(source_table, source_lengths, encoded[0].shape[2])
        pools = [source.written(pool, x) for pool, x in zip(past[count:], encoded, strict=True)]
        own = cache_of(self.own, past[:count])
        own.layers = [in_pages(layer, pages) for layer in own.layers]
        cross = cache_of(self.cross, [source.read(pool) for pool in pools])
        cache = EncoderDecoderCache(own, cross)
        cache.is_updated = {slot.layer: True for slot in self.cross}
        mask = torch.arange(source.places) < (source_lengths + source.count)[:, None]
        batch = input_ids.shape[0]
        with offsets_by_row(self.model):
            result = self.model(
                decoder_input_ids=input_ids,
                # Without a mask, BART makes one of the length that all rows would have.
                decoder_attention_mask=torch.ones(batch, pages.places, dtype=torch.int64),
                attention_mask=mask.to(torch.int64),
                # Only the length is read.
                encoder_outputs=EncodedSource(
                    last_hidden_state=past[0].new_zeros(batch, source.places, self.width)
                ),
                use_cache=True,
                **{CACHE: cache},
            )
        return (result.logits, *tensors_of(cache.self_attention_cache, self.own), *pools)

    def example(self, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return example arguments: rows of several lengths, with new tokens and states.

        Args:
            dtype: Not used: the cache has the dtype that the model gives it.
        """
        del dtype
        return self.arguments((7, 3), (4, 9), 3, 6)

    def arguments(
        self, targets: Sequence[int], sources: Sequence[int], length: int, states: int
    ) -> tuple[Any, ...]:
        """Return arguments for new tokens and states after cached ones, in blocks out of order.

        Args:
            targets: The cached tokens of each row.
            sources: The cached states of each row.
            length: The number of new tokens.
            states: The number of new states.
        """
        batch = len(targets)
        tables: list[torch.Tensor] = []
        for widest in (max(targets) + length, max(sources) + states):
            # Tables of other sizes: an export may take equal ones for one.
            count = -(-widest // BLOCK) + 1 + len(tables)
            tables.append(torch.arange(batch * count).flip(0).reshape(batch, count))
        blocks = [table.numel() + SPARE for table in tables]
        return (
            torch.ones(batch, length, dtype=torch.int64),
            tables[0],
            torch.tensor(targets),
            tables[1],
            torch.tensor(sources),
            [slot.example(batch, states) for slot in self.cross],
            [pool_of(slot, blocks[slot in self.cross]) for slot in self.slots],
        )

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims of `example`."""
        return (
            {0: BATCH, 1: SEQUENCE},
            {0: BATCH, 1: TABLE},
            {0: BATCH},
            {0: BATCH, 1: f"encoder_{TABLE}"},
            {0: BATCH},
            [{0: BATCH, 2: SOURCE} for _ in self.cross],
            [{0: BLOCKS if slot in self.own else SOURCE_BLOCKS} for slot in self.slots],
        )


class PagedEncoderPart(EncoderPart):
    """The encoder of a model, with the keys and values that a decoder computes of its result."""

    def __init__(self, decoder: PagedDecoderPart) -> None:
        """Take the encoder of the model of a decoder."""
        super().__init__(decoder.model)
        self.decoder, self.output_names = decoder, decoder.encoded_names

    def forward(self, inputs: Sequence[torch.Tensor]) -> Any:
        """Return the keys and values."""
        cache = self.decoder.caches(self.state(inputs))
        return tuple(tensors_of(cache.cross_attention_cache, self.decoder.cross))


def paged_encoder(model: torch.nn.Module, *, check: bool) -> PagedEncoderPart:
    """Return the encoder of a model, with its decoder.

    Args:
        model: The model.
        check: Whether to compare them with the model; see `check_source_pages`.

    Raises:
        ModelSourceError: If the encoder reads something else than token ids, or the decoder does
            not run with such a cache.
        ConversionError: If it computes other logits.
    """
    encoder = PagedEncoderPart(PagedDecoderPart(model, EncoderPart(model)))
    if check:
        check_source_pages(encoder)
    return encoder


@torch.no_grad()
def check_source_pages(encoder: PagedEncoderPart) -> None:
    """Compare the logits of rows of several lengths with those that the model has for each alone.

    Args:
        encoder: The encoder to export, with its decoder.

    Raises:
        ConversionError: If the logits differ.
    """
    part, random = encoder.decoder, torch.Generator().manual_seed(0)
    model, name = part.model, type(part.model).__name__
    _, table, lengths, *sources, nothing, pools = part.arguments(_TARGETS, _SOURCES, _NEW, 0)
    expected, new, none = [], [], torch.tensor([0])
    with failures_as(ConversionError, f"{name} does not run with a paged cache"):
        for row, (source, target) in enumerate(zip(_SOURCES, _TARGETS, strict=True)):
            ids = random_tokens(model, torch.Size([1, source]), random)
            tokens = random_tokens(model, torch.Size([1, target + _NEW]), random)
            mask, rows = torch.ones_like(ids), slice(row, row + 1)
            result = model(input_ids=ids, attention_mask=mask, decoder_input_ids=tokens)
            expected.append(result.logits[:, -_NEW:])
            new.append(tokens[:, -_NEW:])
            where = (table[rows], none, sources[0][rows], none)
            _, *pools = part(tokens[:, :target], *where, encoder([ids, mask]), pools)
        logits, *_ = part(torch.cat(new), table, lengths, *sources, nothing, pools)
    check_logits(name, logits, expected)
