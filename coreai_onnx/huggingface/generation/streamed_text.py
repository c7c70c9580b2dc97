"""The text of tokens that come one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class StreamedText:
    """The text of a sequence, token by token.

    Attributes:
        decode: Returns the text of tokens.
        tokens: The tokens of the last piece and of the one that is not complete.
        shown: How many of them are shown already. They are decoded again, because the text of a
            token depends on the one before.
    """

    decode: Callable[[list[int]], str]
    tokens: list[int] = field(default_factory=list)
    shown: int = 0

    def add(self, token: int) -> str:
        """Return the text that a token adds; a character of several tokens comes with the last."""
        self.tokens.append(token)
        before, text = self.decode(self.tokens[: self.shown]), self.decode(self.tokens)
        # Byte-level tokens may end within a character of UTF-8: what is not complete decodes to
        # U+FFFD.
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        # Only the tokens of the last piece stay: decoding all of them in each step would be
        # quadratic.
        self.tokens = self.tokens[self.shown :]
        self.shown = len(self.tokens)
        return text[len(before) :]

    def rest(self) -> str:
        """Return the text of tokens that do not complete a character, with U+FFFD."""
        before, text = self.decode(self.tokens[: self.shown]), self.decode(self.tokens)
        self.tokens, self.shown = [], 0
        return text[len(before) :]


def pieces(
    steps: Iterator[torch.Tensor], decode: Callable[[list[int]], str] | None, *, is_single: bool
) -> Iterator[Any]:
    """Yield the text or the tokens that each step adds, for a batch those of all rows.

    Args:
        steps: The new token of each row, int64 ``[batch]``.
        decode: Returns the text of tokens; None for the tokens themselves.
        is_single: Whether the only row is the prompt itself.
    """
    if decode is None:
        for tokens in steps:
            yield int(tokens[0]) if is_single else tokens.numpy()
        return
    rows: list[StreamedText] = []
    for tokens in steps:
        rows = rows or [StreamedText(decode) for _ in tokens]
        texts = [row.add(token) for row, token in zip(rows, tokens.tolist(), strict=True)]
        yield texts[0] if is_single else texts
    if any(rest := [row.rest() for row in rows]):
        yield rest[0] if is_single else rest
