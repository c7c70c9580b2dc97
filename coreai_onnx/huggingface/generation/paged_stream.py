"""Rows of any length in one stream of a decoder with a paged cache."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface.generation.block_pool import BlockPool
from coreai_onnx.huggingface.generation.decoding import empty, shape_of
from coreai_onnx.model.contract import (
    BLOCK_TABLE,
    BLOCKS,
    CACHE_LENGTHS,
    ENCODED,
    SLOTS,
    SOURCE_BLOCKS,
    SOURCE_LENGTHS,
    SOURCE_TABLE,
    STATE_SLOTS,
)
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.tensors.outputs import Array


@dataclass
class CacheRow:
    """A row of the cache.

    Attributes:
        prompt: The tokens to read first.
        blocks: Its blocks.
        slot: The slot of its recurrent states.
        read: The number of tokens in the cache.
        last: The token that is read next, after the prompt.
        candidates: Tokens that may follow it, read in the same step.
        source: The tokens that an encoder reads first.
        source_blocks: The blocks of its result.
        encoded: The number of its states in the cache.
    """

    prompt: Sequence[int]
    blocks: list[int]
    slot: int
    read: int = 0
    last: int = 0
    candidates: Sequence[int] = ()
    source: Sequence[int] = ()
    source_blocks: Sequence[int] = ()
    encoded: int = 0


class PagedStream:
    """The rows of a decoder that was exported with ``cache="paged"``.

    Attributes:
        pool: The blocks.
        sources: Those of an encoder's results.
        read_tokens: Tokens of prompts that were read.
        shared_tokens: Tokens of prompts that were in the cache already.
    """

    def __init__(
        self,
        session: Session,
        slots: int,
        tokens: int,
        chunk: int,
        context: int | None = None,
        encoder: Session | None = None,
    ) -> None:
        """Allocate the cache.

        Args:
            session: The decoder; its own states do not change.
            slots: The number of rows.
            tokens: The number of tokens in all rows, and as many of what an encoder reads.
            chunk: The most tokens of a prompt in a call, rounded up to whole blocks.
            context: The longest text that the model knows; None if it is not known.
            encoder: The encoder of a model that has one.

        Raises:
            GenerationError: If the model has another cache, or the machine lacks the memory.
        """
        self._names = {info.name for info in session.inputs}
        if CACHE_LENGTHS not in self._names:
            raise GenerationError(
                "an engine needs a decoder with a paged cache: export the model with "
                '--cache paged, or export_model(..., cache="paged")'
            )
        # Blocks of states alone hold nothing, and rows may have any number of tokens.
        pools = [info.dims[1] for info in session.state_inputs if info.dims[0] == BLOCKS]
        size = int(pools[0] or 1) if pools else 1
        count = -(-tokens // size) if pools else 0
        sizes = {BLOCKS: count, SOURCE_BLOCKS: count, SLOTS: slots}
        # First: the machine may not have the memory.
        shapes = {info.name: shape_of(info, sizes) for info in session.state_inputs}
        self._chunk = -(-chunk // size) * size
        self.pool, self.sources = (BlockPool(count, size, self._chunk) for _ in range(2))
        self._encoder = encoder
        self._nothing = [info for info in session.inputs if info.name.startswith(ENCODED)]
        # A recurrent state is not in blocks, and both it and an encoder's result change what
        # follows from the tokens.
        self._shares = STATE_SLOTS not in self._names and encoder is None
        self.read_tokens = self.shared_tokens = 0
        self._tokens = tokens if pools else sys.maxsize
        self._context, self._free = context, list(range(slots))[::-1]
        # A call that fails has written to places that no row has read yet, but for states in slots.
        self._stream = session.stream(zeros=shapes, undo=not self.is_rewindable)
        self._counts = any(x.name == "num_logits_to_keep" for x in session.optional_inputs)

    @property
    def is_rewindable(self) -> bool:
        """Whether tokens that were read can be taken back."""
        return STATE_SLOTS not in self._names

    @property
    def longest(self) -> int:
        """The most tokens that a row may have."""
        return min(self._tokens, self._context or self._tokens)

    @property
    def free_blocks(self) -> int:
        """The number of blocks that no row uses."""
        return self.pool.available + (self.sources.available if self._encoder else 0)

    def check(self, most: int, prompt: int, source: int = 0) -> None:
        """Check that a row fits into the empty cache.

        Raises:
            GenerationError: If it does not.
        """
        what = f"a prompt of {prompt} tokens with up to {most - prompt} new ones"
        if source > self.longest:
            raise GenerationError(
                f"a text of {source} tokens for the encoder is longer than {self.longest}, which "
                "the cache holds and the model knows"
            )
        if most > self._tokens:
            raise GenerationError(
                f"{what} does not fit the cache of {self._tokens}: choose a smaller "
                "max_new_tokens, or engine(tokens=…)"
            )
        # A table of positions has no rows beyond: the step would fail for all requests in it.
        if self._context is not None and most > self._context:
            raise GenerationError(f"{what} is longer than the {self._context} of the model")

    def join(self, prompt: Sequence[int], most: int, source: Sequence[int] = ()) -> CacheRow | None:
        """Return a new row of at most so many tokens; None if there is no place for it now."""
        read = self.sources.take(len(source))
        tokens = most if BLOCK_TABLE in self._names else 0
        places = read and self.pool.take(tokens, prompt if self._shares else ())
        if read is None or places is None:
            self.sources.give_back(read[0] if read else ())
            return None
        blocks, shared = places
        self.shared_tokens += shared
        slot = self._free.pop()
        return CacheRow(prompt, blocks, slot, shared, source=source, source_blocks=read[0])

    def leave(self, row: CacheRow) -> None:
        """Release a row."""
        self.pool.give_back(row.blocks)
        self.sources.give_back(row.source_blocks)
        self._free.append(row.slot)

    def together(self, rows: Sequence[CacheRow], most: int) -> list[int]:
        """Return the places of rows whose next chunks one call reads.

        These are that of the first row, and up to ``most`` in all of as many tokens. Rows first
        share what others have read.
        """
        places: list[int] = []
        beginnings: list[Sequence[int]] = []
        for place, row in enumerate(rows):
            self._share(row)
            end = self._end(row)
            beginning = row.prompt[:end]
            is_as_long = not places or end - row.read == len(beginnings[0]) - rows[places[0]].read
            # One that the others will share is not read twice.
            is_shared = self._shares and end % self._chunk == 0 and beginning in beginnings
            if is_as_long and not is_shared:
                places.append(place)
                beginnings.append(beginning)
            if len(places) == most or self._encoder is not None:
                break
        return places

    def read(self, rows: Sequence[CacheRow]) -> list[torch.Tensor | None]:
        """Read the next chunks of prompts, of as many tokens each; see `together`.

        Returns:
            The logits ``[1, vocabulary]`` of each row after its last chunk; None after others.
        """
        ends = [self._end(row) for row in rows]
        ids = [row.prompt[row.read : end] for row, end in zip(rows, ends, strict=True)]
        logits = self._run(rows, np.array(ids, np.int64))
        for row, end in zip(rows, ends, strict=True):
            self.read_tokens += end - row.read
            row.read = end
            if self._shares:
                self.pool.keep(row.prompt, end, row.blocks)
        return [
            one if row.read == len(row.prompt) else None
            for row, one in zip(rows, logits, strict=True)
        ]

    def _share(self, row: CacheRow) -> None:
        """Take the next chunks of a prompt that others have read."""
        if self._shares and row.read % self._chunk == 0:
            shared = self.pool.share(row.prompt, row.read, row.blocks)
            self.shared_tokens += shared - row.read
            row.read = shared

    def _end(self, row: CacheRow) -> int:
        # Chunks end at the same tokens wherever the row begins to read.
        return min((row.read // self._chunk + 1) * self._chunk, len(row.prompt))

    def step(self, rows: Sequence[CacheRow]) -> list[torch.Tensor]:
        """Read the last token of each row with its candidates, rows of as many in one call.

        Returns:
            The logits of each row after each of these tokens, ``[1 + candidates, vocabulary]``.
            Candidates stay unread: `CacheRow.read` grows by those that are accepted.
        """
        groups: dict[int, list[CacheRow]] = {}
        for row in rows:
            groups.setdefault(len(row.candidates), []).append(row)
        results: dict[int, torch.Tensor] = {}
        for count, group in groups.items():
            ids = np.array([[row.last, *row.candidates] for row in group], np.int64)
            logits = self._run(group, ids, count + 1)
            results |= {row.slot: x for row, x in zip(group, logits, strict=True)}
        for row in rows:
            row.read += 1
        return [results[row.slot] for row in rows]

    def close(self) -> None:
        """Release the cache."""
        self._stream.close()

    def _run(self, rows: Sequence[CacheRow], ids: Array, count: int = 1) -> torch.Tensor:
        """Return the logits of the last tokens, ``[rows, count, vocabulary]``."""
        feeds = {
            "input_ids": ids,
            CACHE_LENGTHS: np.array([row.read for row in rows], np.int64),
            STATE_SLOTS: np.array([row.slot for row in rows], np.int64),
        }
        if BLOCK_TABLE in self._names:
            length = ids.shape[1]
            counts = [self.pool.blocks_for(row.read + length) for row in rows]
            feeds[BLOCK_TABLE] = _table([row.blocks for row in rows], counts)
        if self._encoder is not None:
            feeds |= self._sources_of(rows)
        inputs = {name: x for name, x in feeds.items() if name in self._names}
        if self._counts:
            inputs["num_logits_to_keep"] = np.array(count)
        outputs = self._stream.run(**inputs)
        for row in rows:
            row.encoded = len(row.source)
        return torch.from_numpy(np.asarray(outputs["logits"], np.float32))[:, -count:]

    def _sources_of(self, rows: Sequence[CacheRow]) -> dict[str, Array]:
        """Return what is fed of an encoder's results: those of a row are written once."""
        assert self._encoder is not None
        blocks = [row.source_blocks for row in rows]
        feeds = {
            SOURCE_TABLE: _table(blocks, list(map(len, blocks))),
            SOURCE_LENGTHS: np.array([row.encoded for row in rows], np.int64),
        }
        if rows[0].encoded == 0:
            # Alone: rows step together only after their first call.
            source = np.array([rows[0].source], np.int64)
            outputs = self._encoder.run(input_ids=source, attention_mask=np.ones_like(source))
            return feeds | {info.name: outputs[info.name] for info in self._nothing}
        # What has no dim of a size is empty.
        sizes = {self._nothing[0].dims[0]: len(rows)}
        return feeds | {info.name: empty(info, sizes) for info in self._nothing}


def _table(blocks: Sequence[Sequence[int]], counts: Sequence[int]) -> Array:
    """Return the first blocks of each row, int64 ``[rows, table_length]``."""
    # Attention hides what is beyond the length of a row, in any block.
    table = np.zeros((len(blocks), max(counts)), np.int64)
    for place, (row, count) in enumerate(zip(blocks, counts, strict=True)):
        table[place, :count] = row[:count]
    return table
