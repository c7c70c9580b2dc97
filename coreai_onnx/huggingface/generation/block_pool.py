"""The blocks of a paged cache: free ones, and those with the beginning of an earlier prompt."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np


class BlockPool:
    """Blocks of a paged cache, some of which several rows share.

    Blocks of a chunk of a prompt stay known after its row has left, until others need them. A chunk
    is found by the tokens up to its end, so that its keys and values are those of the same text.
    Only whole chunks are shared: a row then reads the rest in the same calls as without sharing,
    and the same calls give the same bits.

    Attributes:
        size: Tokens in a block.
        chunk: Tokens in a chunk, whole blocks.
    """

    def __init__(self, count: int, size: int, chunk: int) -> None:
        """Start with all blocks free.

        Args:
            count: The number of blocks.
            size: Tokens in a block.
            chunk: Tokens in a chunk.
        """
        self.size, self.chunk = size, chunk
        self._free = list(range(count))[::-1]
        self._users: Counter[int] = Counter()
        self._known: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()

    @property
    def available(self) -> int:
        """The number of blocks that no row uses."""
        return len(self._free) + sum(map(len, self._unused()))

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks that hold a number of tokens."""
        return -(-tokens // self.size)

    def take(self, tokens: int, prompt: Sequence[int] = ()) -> tuple[list[int], int] | None:
        """Return blocks for a row, and how many tokens of its prompt they hold already.

        Args:
            tokens: The most tokens that the row will have.
            prompt: The prompt to find; the last token is never found, because its logits are
                needed. Empty for a model whose rows have states beside the blocks.

        Returns:
            None if there are too few blocks, and nothing is taken.
        """
        chunks = self._found(prompt, 0)
        shared = [block for chunk in chunks.values() for block in chunk]
        self._users.update(shared)
        count = self.blocks_for(tokens) - len(shared)
        if count > self.available:
            self.give_back(shared)
            return None
        self._touch(list(chunks))
        new = [self._next() for _ in range(count)]
        self._users.update(new)
        return shared + new, len(shared) * self.size

    def share(self, prompt: Sequence[int], read: int, blocks: list[int]) -> int:
        """Replace blocks of a row by those that hold what it would read next.

        Another row may have read it since the blocks were taken.

        Args:
            prompt: As for `take`.
            read: The number of tokens that the row has read, whole chunks.
            blocks: The blocks of the row; changed in place.

        Returns:
            The number of tokens that the row has read now.
        """
        chunks = self._found(prompt, read)
        for chunk in chunks.values():
            place = slice(read // self.size, (read + self.chunk) // self.size)
            replaced, blocks[place] = blocks[place], chunk
            self._users.update(chunk)
            self.give_back(replaced)
            read += self.chunk
        self._touch(list(chunks))
        return read

    def keep(self, prompt: Sequence[int], end: int, blocks: Sequence[int]) -> None:
        """Remember the last chunk of the first tokens of a prompt, which the row has read.

        Args:
            prompt: The prompt.
            end: The number of tokens that the row has read; nothing is kept within a chunk.
            blocks: The blocks of the row.
        """
        if end % self.chunk:
            return
        keys = list(_keys(prompt[:end], self.chunk))
        chunk = tuple(blocks[(end - self.chunk) // self.size : end // self.size])
        self._known.setdefault(keys[-1], chunk)
        self._touch(keys)

    def give_back(self, blocks: Sequence[int]) -> None:
        """Release the blocks of a row."""
        self._users.subtract(blocks)
        cached = {block for chunk in self._known.values() for block in chunk}
        self._free += [x for x in blocks if self._users[x] == 0 and x not in cached]

    def _found(self, prompt: Sequence[int], read: int) -> dict[bytes, tuple[int, ...]]:
        """Return the known chunks of a prompt after the first tokens, by their keys."""
        keys = list(_keys(prompt[: max(len(prompt) - 1, 0)], self.chunk))[read // self.chunk :]
        cached = itertools.takewhile(self._known.__contains__, keys)
        return {key: self._known[key] for key in cached}

    def _touch(self, keys: Sequence[bytes]) -> None:
        """Make known chunks of a text the last ones to be evicted."""
        # The beginning after the rest, which cannot be found without it.
        for key in reversed(keys):
            if key in self._known:
                self._known.move_to_end(key)

    def _unused(self) -> Iterator[tuple[int, ...]]:
        # A list at once: statistics are read while the engine remembers chunks.
        cached = list(self._known.values())
        return (x for x in cached if not any(self._users[block] for block in x))

    def _next(self) -> int:
        if not self._free:
            key = next(k for k, x in self._known.items() if not any(self._users[b] for b in x))
            self._free += self._known.pop(key)
        return self._free.pop()


def _keys(tokens: Sequence[int], chunk: int) -> Iterator[bytes]:
    """Yield a key for the tokens up to the end of each whole chunk."""
    # Not `hash`: a client that finds a collision would read from the text of another one.
    digest = hashlib.sha256()
    for end in range(chunk, len(tokens) + 1, chunk):
        digest.update(np.array(tokens[end - chunk : end], np.int64).tobytes())
        yield digest.digest()
