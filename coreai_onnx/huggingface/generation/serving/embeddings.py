"""OpenAI's embeddings by HTTP, with a sentence encoder behind them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from coreai_onnx.errors import GenerationError, RequestError, failures_as
from coreai_onnx.huggingface.generation.configuration import Configuration
from coreai_onnx.huggingface.generation.prompts import read_tokenizer
from coreai_onnx.huggingface.generation.serving.answers import json_response, unless_gone
from coreai_onnx.huggingface.generation.serving.application import Served, application
from coreai_onnx.huggingface.generation.serving.fields import read_embeddings, read_object
from coreai_onnx.huggingface.generation.serving.metrics import Metrics
from coreai_onnx.model.files.new_files import file_fault
from coreai_onnx.model.files.program_files import MODEL_FILE
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.tensors.outputs import Array

_SENTENCE = "sentence_embedding"
_BATCH = 32
"""Texts of a call, as many as sentence-transformers runs by default."""
_PADDING = {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0}


def is_sentence_encoder(folder: Path) -> bool:
    """Return whether the model of a folder computes embeddings of sentences."""
    file = folder / MODEL_FILE
    if file_fault(file):
        return False
    with failures_as(GenerationError, f"cannot read {file}"):
        return any(value.name == _SENTENCE for value in ir.load(file).graph.outputs)


def embedding_endpoint(
    folder: Path,
    name: str,
    *,
    max_body: int = 1 << 20,
    max_prompt: int | None = None,
    timeout: float = 300,
    queue: int = 256,
    allow_origins: Sequence[str] = (),
    **settings: Any,
) -> Starlette:
    """Return an application of ASGI that answers OpenAI's requests of embeddings.

    Args:
        folder: What `export_model` made of a sentence encoder, with a tokenizer.
        name: The name that clients give the model.
        max_body: The most bytes of a request.
        max_prompt: The most tokens of a text; None takes those that the model knows.
        timeout: Seconds that a request may take, with those that it waits.
        queue: The number of requests that may wait.
        allow_origins: As of `endpoint`.
        **settings: Settings of the session.

    Raises:
        GenerationError: If the folder has no tokenizer, or the model other inputs than tokens.
        SessionError: If the model cannot be opened.
    """
    encoder = _Encoder.open(folder, max_prompt, settings)
    return application(_Embeddings(encoder, name, max_body, timeout, queue), allow_origins)


@dataclass(frozen=True)
class _Encoder:
    """A sentence encoder with its tokenizer, and the most tokens of a text."""

    session: Session
    tokenizer: Any
    longest: int

    @classmethod
    def open(cls, folder: Path, max_prompt: int | None, settings: dict[str, Any]) -> _Encoder:
        tokenizer, context = read_tokenizer(folder), Configuration.read(folder).context
        if tokenizer is None:
            raise GenerationError("an endpoint needs a tokenizer in the folder of the model")
        session = Session(folder / MODEL_FILE, **settings)
        names = {info.name for info in session.inputs}
        if "input_ids" not in names or names - _PADDING.keys():
            raise GenerationError(
                f"embeddings need a model of {', '.join(_PADDING)}, got {', '.join(sorted(names))}"
            )
        # A tokenizer that does not know a limit has a very large number.
        limits = (max_prompt, context, tokenizer.model_max_length)
        return cls(session, tokenizer, min(limit for limit in limits if limit is not None))

    def tokens(self, texts: Sequence[Any]) -> list[list[int]]:
        """Return the tokens of texts, which may be tokens already."""
        rows = texts
        if isinstance(texts[0], str):
            with failures_as(RequestError, "the input is not valid text"):
                rows = self.tokenizer(list(texts))["input_ids"]
        for row in rows:
            if len(row) > self.longest:
                raise RequestError(
                    f"the input has {len(row)} tokens, and there is place for {self.longest}",
                    param="input",
                    code="context_length_exceeded",
                )
            if not all(0 <= token < len(self.tokenizer) for token in row):
                what = f"token ids must be from 0 to {len(self.tokenizer) - 1}"
                raise RequestError(what, param="input")
        return list(rows)

    def vectors(self, rows: Sequence[list[int]]) -> Array:
        """Return the embeddings of a batch, float32 ``[batch, size]``."""
        width = max(map(len, rows))
        ids, mask = np.zeros((2, len(rows), width), np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)], mask[i, : len(row)] = row, 1
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        names = {info.name for info in self.session.inputs}
        with failures_as(GenerationError, "the request failed"):
            outputs = self.session.run(**{n: x for n, x in feeds.items() if n in names})
            vectors = np.asarray(outputs[_SENTENCE], np.float32)
        if not np.isfinite(vectors).all():
            raise GenerationError("an embedding is not finite")
        return vectors


class _Embeddings(Served):
    """An encoder, whose batches are computed one after the other."""

    def __init__(
        self, encoder: _Encoder, name: str, max_body: int, timeout: float, queue: int
    ) -> None:
        super().__init__(name, Metrics(), max_body, timeout)
        self.encoder, self.queue = encoder, queue
        self.handlers = {"embeddings": self.embeddings}
        self._waiting, self.turn = 0, asyncio.Lock()

    async def embeddings(self, request: Request) -> Response:
        deadline = asyncio.get_running_loop().time() + self.timeout
        async with asyncio.timeout_at(deadline):
            content = read_object(await self.body(request))
            texts, is_base64 = read_embeddings(content)
            self.check_name(content.get("model"))
            rows = await asyncio.to_thread(self.encoder.tokens, texts)
            return await unless_gone(request, _Work(self, rows, is_base64=is_base64))

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take a place in the queue."""
        # The one that runs does not wait.
        if self._waiting > self.queue:
            limit = "rate_limit_error", None, "rate_limit_exceeded"
            what = f"{self.queue} requests are waiting already: try later"
            raise RequestError(what, 429, *limit)
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1


@dataclass
class _Work:
    """One request."""

    served: _Embeddings
    rows: list[list[int]]
    is_base64: bool

    async def whole(self) -> Response:
        """Compute a batch at a time, so that others, and the end, wait for one at most."""
        rows = self.rows
        vectors: dict[int, Array] = {}
        # Rows of similar length have little padding.
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        with self.served.place():
            for start in range(0, len(order), _BATCH):
                batch = order[start : start + _BATCH]
                inputs = [rows[i] for i in batch]
                async with self.served.turn:
                    outputs = await asyncio.to_thread(self.served.encoder.vectors, inputs)
                vectors.update(zip(batch, outputs, strict=True))
        tokens = sum(map(len, rows))
        self.served.metrics.prompt_tokens.inc(tokens)
        data = [
            {"object": "embedding", "index": i, "embedding": self._form(vectors[i])}
            for i in range(len(rows))
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        content = {"object": "list", "data": data, "model": self.served.name, "usage": usage}
        return json_response(content)

    def cancel(self) -> None:
        """Do nothing: its task ends between batches."""

    def _form(self, vector: Array) -> Any:
        if not self.is_base64:
            return vector.tolist()
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
