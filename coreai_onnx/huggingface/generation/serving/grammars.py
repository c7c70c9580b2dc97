"""Answers that must be JSON or call a tool: grammars of llguidance that mask the logits."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import llguidance
import llguidance.hf
import numpy as np
import torch
from transformers import LogitsProcessor

from coreai_onnx.errors import GenerationError, RequestError, failures_as
from coreai_onnx.huggingface.generation.generating import LanguageModel
from coreai_onnx.huggingface.generation.serving.tool_calls import written_form

_FORM, _TOOLS = "response_format", "tool_choice"
_NO_SPACES: Any = {"whitespace_flexible": False}
"""A model might go on with spaces between the parts of JSON forever."""


class Grammars:
    """Compiles what requests ask for, for the vocabulary of a model."""

    def __init__(self, model: LanguageModel) -> None:
        """Compile for a model; its tokenizer is read with the first request that needs it."""
        self._model = model

    @functools.cached_property
    def _tokens(self) -> Any:
        model = self._model
        size = model.session.outputs[0].dims[-1]
        if not model.stop_ids or not isinstance(size, int):
            raise RequestError(
                "the model has no token that ends a text: JSON would not end", param=_FORM
            )
        with failures_as(RequestError, f"{_FORM}: the tokenizer of the model is not supported"):
            return llguidance.hf.from_tokenizer(
                model.tokenizer, n_vocab=size, eos_token=list(model.stop_ids)
            )

    def of_form(self, form: Mapping[str, Any]) -> Grammar:
        """Return the grammar of a ``response_format``.

        Args:
            form: ``{"type": "json_object"}``, or ``{"type": "json_schema", "json_schema": …}``.

        Raises:
            RequestError: If the schema is not valid, is not supported, or nothing satisfies it.
        """
        # OpenAI's json_object is an object, not any value.
        named = form.get("json_schema", {})
        schema = named.get("schema", {}) if named else {"type": "object"}
        with failures_as(RequestError, f"{_FORM}: the JSON schema is not supported"):
            grammar = llguidance.LLMatcher.grammar_from_json_schema(
                json.dumps(schema), overrides=_NO_SPACES
            )
        return self._compiled(grammar, _FORM)

    def of_calls(self, tools: Sequence[Mapping[str, Any]]) -> Grammar:
        """Return the grammar of a call of one of some tools, as the chat template writes it.

        Args:
            tools: The tools, whose ``parameters`` are JSON schemas.

        Raises:
            RequestError: If the chat template has no known form of calls, or as `of_form`.
        """
        form = written_form(str(self._model.tokenizer.get_chat_template(None, list(tools))))
        if form is None:
            raise RequestError(
                "the chat template of the model shows no known form of calls", param=_TOOLS
            )
        before, arguments, after = form
        schema = {"anyOf": [_call(x["function"], arguments) for x in tools]}
        parts = [json.dumps(text) for text in (before, after)]
        call = f"call: %json {json.dumps({**schema, 'x-guidance': _NO_SPACES})}"
        start = " call ".join(part if part != '""' else "" for part in parts)
        with failures_as(RequestError, f"{_TOOLS}: the schema of a tool is not supported"):
            grammar = llguidance.LLMatcher.grammar_from_lark(f"start: {start}\n{call}")
        return self._compiled(grammar, _TOOLS)

    def _compiled(self, text: str, field: str) -> Grammar:
        matcher = llguidance.LLMatcher(self._tokens, text)
        matcher.compute_bitmask()  # finds what refers to itself only
        if matcher.is_error():
            reason = matcher.get_error().partition("\n")[0]
            raise RequestError(f"{field}: the JSON schema is refused: {reason}", param=field)
        return Grammar(matcher)


def _call(function: Mapping[str, Any], arguments: str) -> dict[str, Any]:
    """Return the schema of a call of a function."""
    # OpenAI: a function without parameters takes none.
    none = {"type": "object", "properties": {}, "additionalProperties": False}
    schemas = {"name": {"const": function["name"]}, arguments: function.get("parameters") or none}
    keys = {"required": list(schemas), "additionalProperties": False}
    return {"type": "object", "properties": schemas, **keys}


@dataclass(frozen=True)
class Grammar:
    """A compiled grammar."""

    matcher: llguidance.LLMatcher

    def processor(self) -> LogitsProcessor:
        """Return what holds one answer to the grammar; it has a state."""
        return _Held(self.matcher.deep_copy())


class _Held(LogitsProcessor):
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
