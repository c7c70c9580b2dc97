"""Decoders with a paged cache: rows of any length, in blocks of a pool that they share.

A block holds the keys or values of a few tokens, as in vLLM (Kwon et al. 2023, "Efficient Memory
Management for Large Language Model Serving with PagedAttention"). A row names its blocks in a
table, so that rows join and leave without a copy of the cache, and may share the blocks of a common
beginning. Tokens are aligned on the left: what a row reads does not depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from coreai_onnx.composites.caches import CACHE_BITS, rows_of_blocks
from coreai_onnx.errors import ConversionError, ModelSourceError, failures_as
from coreai_onnx.huggingface.caches import (
    Both,
    Growing,
    Slot,
    cache_parameter,
    states_in_cache,
)
from coreai_onnx.huggingface.decoders import (
    BATCH,
    KEPT,
    KEPT_DIM,
    SEQUENCE,
    CachedTokens,
    CodedDecoder,
    Decoder,
    InCodes,
)
from coreai_onnx.huggingface.transformers_names import offsets_by_row
from coreai_onnx.huggingface.verification import check_generation, difference, random_tokens
from coreai_onnx.model.contract import BLOCK_TABLE, BLOCKS, CACHE_LENGTHS, SLOTS, STATE_SLOTS

CACHES = ("growing", "static", "paged")
BLOCK = 16
"""Tokens in a block, as in vLLM: half a block of each row is unused on average."""
TABLE = "table_length"
"""The dim of the blocks of a row."""
SPARE = 3
"""Blocks and slots of the example that no row names."""
_ROWS, _NEW = (19, 3, 40), 2
"""Cached tokens of the rows that are checked, and new ones."""


@dataclass(frozen=True)
class Pages:
    """Where the tokens of a call are.

    Attributes:
        table: The blocks of each row, int64 ``[batch, table_length]``.
        lengths: How many tokens each row has in the cache, int64 ``[batch]``.
        count: The number of new tokens of each row; a symbolic size while it is exported.
    """

    table: torch.Tensor
    lengths: torch.Tensor
    count: Any

    @property
    def positions(self) -> torch.Tensor:
        """The positions of the new tokens, int64 ``[batch, count]``."""
        return self.lengths[:, None] + torch.arange(self.count)

    @property
    def places(self) -> Any:
        """The number of tokens for which a row has places."""
        return self.table.shape[1] * BLOCK

    def written(self, pool: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return a pool with new keys or values ``[batch, heads, count, dim]``."""
        positions = self.positions
        blocks = self.table.gather(1, positions // BLOCK)
        return pool.index_put((blocks, positions % BLOCK), x.transpose(1, 2))

    def read(self, pool: torch.Tensor) -> torch.Tensor:
        """Return the keys or values of each row, ``[batch, heads, places, dim]``."""
        return rows_of_blocks(pool, self.table)


class _InPages(CachedTokens):
    """Keys and values in blocks of a pool."""

    pages: Pages

    def update(
        self: Any, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the keys and values of the new tokens, and return those of each row."""
        del args, kwargs
        self.keys = self.joined(self.keys, key_states)
        self.values = self.joined(self.values, value_states)
        return self.rows(self.keys), self.rows(self.values)

    def joined(self, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Return a pool with what new tokens add."""
        return self.pages.written(old, new)

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """Return what a pool has of each row."""
        return self.pages.read(x)

    def get_seq_length(self) -> Any:
        """Return the number of cached tokens of each row, int64 ``[batch, 1]``."""
        return self.pages.lengths[:, None]

    def get_mask_sizes(self, query_length: int) -> tuple[Any, int]:
        """Return the places of a row, and that the first token is at the start."""
        del query_length
        return self.pages.places, 0


class _Paged(_InPages, Growing):
    """A layer with keys and values."""


class _PagedBoth(_InPages, Both):
    """A layer with a recurrent state, too."""


class _PagedCoded(InCodes, _InPages, Growing):
    """A layer with codes of keys and values."""


class _PagedCodedBoth(InCodes, _InPages, Both):
    """A layer with codes and a recurrent state."""


def in_pages(layer: Any, pages: Pages) -> Any:
    """Return a layer with its keys and values, or their codes, which are pools, in blocks."""
    if not isinstance(layer, Growing):
        return layer
    classes = (_Paged, _PagedBoth), (_PagedCoded, _PagedCodedBoth)
    paged: Any = classes[isinstance(layer, InCodes)][isinstance(layer, Both)]()
    vars(paged).update(vars(layer), pages=pages)
    return paged


class PagedDecoder(Decoder):
    """A decoder whose keys and values are in blocks of pools, and recurrent states in slots."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Find out what the decoder caches.

        Args:
            model: The decoder.

        Raises:
            ConversionError: If it has no cache.
        """
        super().__init__(model)
        if not self.slots:
            name = type(model).__name__
            raise ConversionError(f"{name} has no cache", advice='choose cache="growing"')
        self._take_pages()

    def _take_pages(self) -> None:
        """Replace the mask and the positions by the inputs of pages."""
        self.has_blocks = any(slot.grows for slot in self.slots)
        self.has_states = not all(slot.grows for slot in self.slots)
        first = ["input_ids", *([BLOCK_TABLE] if self.has_blocks else []), CACHE_LENGTHS]
        first += [STATE_SLOTS] if self.has_states else []
        first += [KEPT] if self.selects_logits else []
        self.input_names = [*first, *(slot.past for slot in self.slots)]

    def contract(self, padding: str) -> None:
        """Return None: there is no mask to state anything about."""
        del padding

    # The inputs are those of another file, and all callers pass them by position.
    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        block_table: torch.Tensor | None,
        cache_lengths: torch.Tensor,
        state_slots: torch.Tensor | None,
        logits_to_keep: torch.Tensor | None,
        past: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Return the logits and the pools after the call."""
        table = cache_lengths[:, None] if block_table is None else block_table
        pages = Pages(table, cache_lengths, input_ids.shape[1])
        rows = [x if state_slots is None or s.grows else _row_states(x, pages, state_slots)
                for s, x in zip(self.slots, past, strict=True)]  # fmt: skip
        cache = self._cache(rows, pages)
        further: dict[str, Any] = {"position_ids": pages.positions} if self.takes_positions else {}
        further |= {str(cache_parameter(self.model)): cache, "use_cache": True}
        further |= {} if logits_to_keep is None else {KEPT: logits_to_keep}
        with states_in_cache(self.model), offsets_by_row(self.model):
            result = self.model(input_ids=input_ids, **further)
        return (result.logits, *self._pools(cache, past, state_slots))

    def _cache(self, tensors: Sequence[torch.Tensor], pages: Pages) -> Any:
        cache = self._filled(tensors, 0)
        if self.has_blocks:
            cache.layers = [in_pages(layer, pages) for layer in cache.layers]
        return cache

    def _pools(
        self, cache: Any, past: Sequence[torch.Tensor], state_slots: torch.Tensor | None
    ) -> Iterator[torch.Tensor]:
        """Yield the pools after a call."""
        for slot, pool, x in zip(self.slots, past, self._presents(cache), strict=True):
            yield x if slot.grows or state_slots is None else pool.index_copy(0, state_slots, x)

    def arguments(self, batch: int, length: int, past: int) -> tuple[Any, ...]:
        """Return arguments for a number of tokens after a number of cached ones, or more.

        A row has more tokens than the one before it, in blocks that are not in order.
        """
        lengths = past * (3 + torch.arange(batch))
        width = int(lengths.max()) + length
        count = -(-width // BLOCK) + 1
        table = torch.arange(batch * count).flip(0).reshape(batch, count)
        kept = torch.arange(length) if self.selects_logits else None
        cache = [pool_of(slot, batch * count + SPARE, batch + SPARE) for slot in self.slots]
        slots = torch.arange(batch).flip(0) + 1
        return (
            torch.ones(batch, length, dtype=torch.int64),
            table if self.has_blocks else None,
            lengths,
            slots if self.has_states else None,
            kept,
            cache,
        )

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims of `example`."""
        return (
            {0: BATCH, 1: SEQUENCE},
            {0: BATCH, 1: TABLE} if self.has_blocks else None,
            {0: BATCH},
            {0: BATCH} if self.has_states else None,
            {0: KEPT_DIM} if self.selects_logits else None,
            [{0: BLOCKS if slot.grows else SLOTS} for slot in self.slots],
        )


class CodedPagedDecoder(PagedDecoder, CodedDecoder):
    """A decoder whose keys and values are codes of few bits in blocks of pools."""

    def __init__(self, model: torch.nn.Module, bits: int) -> None:
        """Find out what the decoder caches.

        Args:
            model: The decoder.
            bits: Size of a code: 8 or 4.

        Raises:
            ConversionError: If it caches no keys and values, or their size is odd.
        """
        CodedDecoder.__init__(self, model, bits)
        self._take_pages()


def pool_of(slot: Slot, blocks: int, slots: int = 0) -> torch.Tensor:
    """Return an empty pool of blocks of keys or values, or of slots of recurrent states."""
    if not slot.grows:
        return torch.zeros(slots, *slot.shape, dtype=slot.dtype)
    heads, _, dim = slot.shape
    return torch.zeros(blocks, BLOCK, heads, dim, dtype=slot.dtype)


def _row_states(pool: torch.Tensor, pages: Pages, slots: torch.Tensor) -> torch.Tensor:
    """Return the states of each row; a slot still has those of the row before."""
    states = pool[slots]
    is_new = (pages.lengths == 0).reshape(-1, *[1] * (states.ndim - 1))
    return torch.where(is_new, torch.zeros_like(states), states)


@torch.no_grad()
def check_pages(decoder: PagedDecoder) -> None:
    """Compare the logits of rows of several lengths with those of each row alone.

    The masks are those of transformers, with an offset for each row. A model that computes masks in
    its own code has the same offset for all rows.

    Args:
        decoder: The decoder to export.

    Raises:
        ConversionError: If the logits differ.
    """
    name, growing = type(decoder.model).__name__, Decoder(decoder.model)
    random = torch.Generator().manual_seed(0)
    shape = torch.Size([len(_ROWS), max(_ROWS) + _NEW])
    tokens = random_tokens(decoder.model, shape, random)
    _, table, _, slots, _, pools = decoder.arguments(len(_ROWS), 1, max(_ROWS))
    expected = []
    for row, length in enumerate(_ROWS):
        prompt, new = tokens[row : row + 1].split([length, tokens.shape[1] - length], dim=1)
        new = new[:, :_NEW]
        _, *first, cache = growing.arguments(1, length, 0)
        _, *cache = growing(prompt, *first, cache)
        _, *step, _ = growing.arguments(1, _NEW, length)
        expected.append(growing(new, *step, cache)[0])
        where = [None if x is None else x[row : row + 1] for x in (table, slots)]
        kept = torch.arange(length) if decoder.selects_logits else None
        with failures_as(ConversionError, f"{name} does not run with a paged cache"):
            _, *pools = decoder(prompt, where[0], torch.tensor([0]), where[1], kept, pools)
    new = torch.stack([tokens[row, n : n + _NEW] for row, n in enumerate(_ROWS)])
    kept = torch.arange(_NEW) if decoder.selects_logits else None
    with failures_as(ConversionError, f"{name} does not run with a paged cache"):
        logits = decoder(new, table, torch.tensor(_ROWS), slots, kept, pools)[0]
    check_logits(name, logits, expected)


def check_logits(name: str, logits: torch.Tensor, expected: Sequence[torch.Tensor]) -> None:
    """Check that rows in a paged cache have the logits that each has alone.

    Raises:
        ConversionError: If they have others.
    """
    error, limit = difference(logits, torch.cat(list(expected)))
    # Not ``error > limit``: NaN must fail as well.
    if not error <= limit:
        raise ConversionError(
            f"{name}: a row in a paged cache has other logits beside rows "
            f"of other lengths than alone (by {error:.3g})",
            advice='export it with cache="growing"',
        )


@dataclass(frozen=True)
class CacheForm:
    """What the cache of a decoder is.

    Attributes:
        kind: ``"growing"``, ``"static"`` or ``"paged"``.
        bits: The bits of keys and values, 8 or 4; None for those of the computation.
    """

    kind: str = "growing"
    bits: int | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ModelSourceError: If there is no such cache.
        """
        if self.kind not in CACHES:
            raise ModelSourceError(f"cache {self.kind!r} must be one of {', '.join(CACHES)}")
        if self.bits is not None and (type(self.bits) is not int or self.bits not in CACHE_BITS):
            raise ModelSourceError(f"cache_bits {self.bits!r:.20} must be 8 or 4")

    def __str__(self) -> str:
        """Return the part of a message: ``paged cache``."""
        return f"{self.kind} cache" + (f" of {self.bits} bits" if self.bits else "")

    @property
    def is_plain(self) -> bool:
        """Whether every model with a cache has one like it."""
        return self == CacheForm()


def decoder_of(model: torch.nn.Module, cache: CacheForm) -> Decoder:
    """Return a decoder with a cache."""
    if cache.kind == "paged":
        return PagedDecoder(model) if cache.bits is None else CodedPagedDecoder(model, cache.bits)
    is_static = cache.kind == "static"
    if cache.bits is not None:
        return CodedDecoder(model, cache.bits, is_static=is_static)
    return Decoder(model, is_static=is_static)


def checked_decoder(model: torch.nn.Module, cache: CacheForm) -> Decoder:
    """Return a decoder with a cache of a kind, whose calls compute what the model itself does.

    Raises:
        ConversionError: If the logits differ.
        ModelSourceError: If the model does not generate.
    """
    decoder = decoder_of(model, cache)
    # Rounded keys and values change the logits by more than any tolerance.
    floats = replace(cache, bits=None)
    checked = decoder if cache == floats else decoder_of(model, floats)
    if isinstance(checked, PagedDecoder):
        check_generation(Decoder(model))
        check_pages(checked)
    else:
        check_generation(checked)
    return decoder
