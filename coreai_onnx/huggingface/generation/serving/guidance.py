"""Replies that follow a JSON schema, by llguidance; and the bytes of single tokens."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import llguidance
import llguidance.hf
import numpy as np
import torch
from transformers import LogitsProcessor

from coreai_onnx.errors import GenerationError, RequestError, failures_as

_FIELD = "response_format"


class Guidance:
    """What llguidance knows of the tokens of a model.

    Args:
        tokenizer: The tokenizer of transformers.
        size: The number of tokens that the model chooses from.
        ends: Tokens that end a reply; if there are none, that of the tokenizer.
    """

    def __init__(self, tokenizer: Any, size: int, ends: Sequence[int]) -> None:
        """Take the tokenizer, which is read when it is first needed: it takes a second."""
        self._tokenizer, self._size, self._ends = tokenizer, size, ends

    @functools.cached_property
    def tokens(self) -> Any:
        """The tokens, as llguidance has them."""
        with failures_as(RequestError, "the tokenizer of the model has no structured output"):
            return llguidance.hf.from_tokenizer(
                self._tokenizer, n_vocab=self._size, eos_token=list(self._ends) or None
            )

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of a token, which may end within a character."""
        content: bytes = self.tokens.decode_bytes([token])
        return content

    def processor(self, schema: Mapping[str, Any]) -> LogitsProcessor:
        """Return what keeps a reply to a JSON schema; one for each reply.

        Raises:
            RequestError: If the schema is not valid, is not supported, or nothing satisfies it.
        """
        with failures_as(RequestError, f"{_FIELD}: the schema is not valid"):
            # A model might go on with spaces between tokens of JSON forever.
            grammar = llguidance.LLMatcher.grammar_from_json_schema(
                json.dumps(schema), overrides={"whitespace_flexible": False}
            )
        matcher = llguidance.LLMatcher(self.tokens, grammar)
        if matcher.is_error():
            reason = matcher.get_error().partition("\n")[0]
            raise RequestError(f"{_FIELD}: the schema cannot be followed: {reason}", param=_FIELD)
        return _Follow(matcher, self._size)


class _Follow(LogitsProcessor):
    """Leaves the tokens that a grammar allows.

    Args:
        matcher: The state of the grammar.
        size: The number of tokens.
    """

    def __init__(self, matcher: llguidance.LLMatcher, size: int) -> None:
        """Begin a reply."""
        self._matcher, self._size = matcher, size
        self._read: int | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores, of one row, with negative infinity for other tokens."""
        # The first call has the prompt, which is not part of the reply.
        new = [] if self._read is None else input_ids[0, self._read :].tolist()
        self._read = input_ids.shape[1]
        if new and not self._matcher.consume_tokens(new):
            raise GenerationError(f"the reply left its schema: {self._matcher.get_error()}")
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(mask, count=self._size, bitorder="little").astype(bool)
        return scores.masked_fill(~torch.from_numpy(allowed), -torch.inf)
