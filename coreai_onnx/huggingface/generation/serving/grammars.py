"""Answers that must be JSON: grammars of llguidance that mask the logits."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import llguidance
import llguidance.hf
import numpy as np
import torch
from transformers import LogitsProcessor

from coreai_onnx.errors import GenerationError, RequestError, failures_as
from coreai_onnx.huggingface.generation.generating import LanguageModel

_FIELD = "response_format"


class Grammars:
    """Compiles what ``response_format`` asks for, for the vocabulary of a model."""

    def __init__(self, model: LanguageModel) -> None:
        """Compile for a model; its tokenizer is read with the first request that needs it."""
        self._model = model

    @functools.cached_property
    def _tokens(self) -> Any:
        model = self._model
        size = model.session.outputs[0].dims[-1]
        if not model.stop_ids or not isinstance(size, int):
            raise RequestError(
                "the model has no token that ends a text: JSON would not end", param=_FIELD
            )
        with failures_as(RequestError, f"{_FIELD}: the tokenizer of the model is not supported"):
            return llguidance.hf.from_tokenizer(
                model.tokenizer, n_vocab=size, eos_token=list(model.stop_ids)
            )

    def processor(self, form: Mapping[str, Any]) -> LogitsProcessor:
        """Return what holds one answer to a grammar; it has a state.

        Args:
            form: ``{"type": "json_object"}``, or ``{"type": "json_schema", "json_schema": …}``.

        Raises:
            RequestError: If the schema is not valid, is not supported, or nothing satisfies it.
        """
        # OpenAI's json_object is an object, not any value.
        named = form.get("json_schema", {})
        schema = named.get("schema", {}) if named else {"type": "object"}
        with failures_as(RequestError, f"{_FIELD}: the JSON schema is not supported"):
            # A model might go on with spaces between the parts of JSON forever.
            grammar = llguidance.LLMatcher.grammar_from_json_schema(
                json.dumps(schema), overrides={"whitespace_flexible": False}
            )
        matcher = llguidance.LLMatcher(self._tokens, grammar)
        matcher.compute_bitmask()  # finds what refers to itself only
        if matcher.is_error():
            reason = matcher.get_error().partition("\n")[0]
            raise RequestError(f"{_FIELD}: the JSON schema is refused: {reason}", param=_FIELD)
        return _Grammar(matcher)


class _Grammar(LogitsProcessor):
    """Leaves the tokens that a grammar allows, in one row.

    Args:
        matcher: The state of the grammar.
    """

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        """Begin an answer."""
        self._matcher = matcher
        self._read: int | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores, with negative infinity for tokens that do not follow."""
        # The first call has the prompt, which is not part of the answer.
        new = [] if self._read is None else input_ids[0, self._read :].tolist()
        self._read = input_ids.shape[1]
        if new:
            self._matcher.consume_tokens(new)
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise GenerationError(f"the answer left its schema: {self._matcher.get_error()}")
        allowed = np.unpackbits(mask, count=scores.shape[-1], bitorder="little").astype(bool)
        return scores.masked_fill(~torch.from_numpy(allowed), -torch.inf)
