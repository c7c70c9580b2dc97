"""Answers that must be JSON: grammars of xgrammar that mask the logits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from coreai_onnx.errors import RequestError, failures_as
from coreai_onnx.huggingface.generation.generating import LanguageModel

_CACHE_BYTES = 64 << 20
"""Compiled grammars that are kept, because clients send the same schema with each request."""
_FIELD = "response_format"


class Grammars:
    """Compiles what ``response_format`` asks for, for the vocabulary of a model."""

    def __init__(self, model: LanguageModel) -> None:
        """Compile for a model, with the first request that needs it."""
        self._model = model
        self._compiler: Any = None

    def compiled(self, form: Mapping[str, Any]) -> Any:
        """Return a grammar of ``xgrammar``.

        Args:
            form: ``{"type": "json_object"}``, or ``{"type": "json_schema", "json_schema": …}``.

        Raises:
            RequestError: If xgrammar is not installed, the schema is not valid, or no text of the
                model's tokens satisfies it.
        """
        try:
            import xgrammar
        except ModuleNotFoundError as error:
            what = f"{_FIELD} needs xgrammar: pip install coreai-onnx-bridge[structured]"
            raise RequestError(what, param=_FIELD) from error

        # OpenAI's json_object is an object, not any value.
        named = form.get("json_schema", {})
        schema = named.get("schema", {}) if named else {"type": "object"}
        with failures_as(RequestError, f"{_FIELD}: the JSON schema is not supported"):
            compiler = self._compiler = self._compiler or self._new_compiler(xgrammar)
            grammar = compiler.compile_json_schema(json.dumps(schema))
            matcher = xgrammar.GrammarMatcher(grammar)
            mask = xgrammar.allocate_token_bitmask(1, grammar.tokenizer_info.vocab_size)
            matcher.fill_next_token_bitmask(mask)
        if not mask.any():
            raise RequestError("no text satisfies the JSON schema", param=_FIELD)
        return grammar

    def _new_compiler(self, xgrammar: Any) -> Any:
        model = self._model
        size = model.session.outputs[0].dims[-1]
        if not model.stop_ids or not isinstance(size, int):
            raise RequestError(
                "the model has no token that ends a text: JSON would not end", param=_FIELD
            )
        tokens = xgrammar.TokenizerInfo.from_huggingface(
            model.tokenizer, vocab_size=size, stop_token_ids=list(model.stop_ids)
        )
        return xgrammar.GrammarCompiler(tokens, max_threads=1, cache_limit_bytes=_CACHE_BYTES)


def processor(grammar: Any) -> Any:
    """Return a logits processor that holds one answer to a grammar; it has a state."""
    from xgrammar.contrib.hf import LogitsProcessor

    return LogitsProcessor(grammar)
