"""Answers of an endpoint in OpenAI's form: whole, or as server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from coreai_onnx.errors import GenerationError, RequestError
from coreai_onnx.huggingface.generation.replies import Reply, StoppedText, TokenLogprobs
from coreai_onnx.huggingface.generation.serving.metrics import Metrics
from coreai_onnx.huggingface.generation.serving.tool_calls import CalledTools

_GONE = 499
"""The status of requests whose clients do not wait for the answer, as nginx names it."""


@dataclass
class Answer:
    """One answer to a request.

    Attributes:
        reply: The reply of the engine: tokens.
        text: The text that they make.
        deadline: When it must be complete, in the time of the event loop.
        metrics: Counts its tokens.
        called: The calls of tools in the text, if the request has tools.
        tokens: The number of tokens so far.
        length: The characters of the text so far.
        finish_reason: Why it ended; None while it runs.
        listed: Logarithms of probabilities that were not sent, each with the place of its token.
    """

    reply: Reply
    text: StoppedText
    deadline: float
    metrics: Metrics
    called: CalledTools | None = None
    tokens: int = 0
    length: int = 0
    finish_reason: str | None = None
    listed: list[tuple[TokenLogprobs, int]] = field(default_factory=list)

    async def pieces(self) -> AsyncIterator[str]:
        """Yield the text, piece by piece.

        Raises:
            GenerationError: If the request failed.
            TimeoutError: If the deadline has passed.
        """
        start = time.monotonic()
        try:
            while self.finish_reason is None:
                try:
                    async with asyncio.timeout_at(self.deadline):
                        token = await anext(self.reply)
                except StopAsyncIteration:
                    self.finish_reason = self.reply.finish_reason
                    piece = self.text.rest()
                else:
                    if not self.tokens:
                        self.metrics.first_token.observe(time.monotonic() - start)
                    if self.reply.logprobs:
                        place = self.length + len(self.text.held)
                        self.listed.append((self.reply.logprobs[self.tokens], place))
                    self.tokens += 1
                    piece, is_stopped = self.text.add(token)
                    self.finish_reason = "stop" if is_stopped else None
                self.length += len(piece)
                if piece := self._without_calls(piece):
                    yield piece
        finally:
            self.reply.cancel()
            self.metrics.answers.labels(self.finish_reason or "cancelled").inc()
            self.metrics.generated_tokens.inc(self.tokens)

    def _without_calls(self, piece: str) -> str:
        if self.called is None:
            return piece
        piece = self.called.add(piece)
        if self.finish_reason is not None:
            piece += self.called.rest()
            # A text that was cut off is not what the model wanted to say.
            if self.called.calls and self.finish_reason == "stop":
                self.finish_reason = "tool_calls"
        return piece


@dataclass(frozen=True)
class Form:
    """Answers in OpenAI's form.

    Attributes:
        model: The name of the model.
        answers: The answers.
        read_tokens: The tokens of the prompts.
        is_chat: Whether the request is a chat.
        decode: Returns the text of tokens, with special ones.
    """

    model: str
    answers: Sequence[Answer]
    read_tokens: int
    is_chat: bool
    decode: Callable[[list[int]], str]

    async def whole(self) -> Response:
        """Wait for all answers."""
        choices = []
        for index, answer in enumerate(self.answers):
            text = "".join([piece async for piece in answer.pieces()])
            content = {"message": _message(text, answer)} if self.is_chat else {"text": text}
            choices.append(self._choice(index, answer, content))
        name = "chat.completion" if self.is_chat else "text_completion"
        return json_response({**self._head(name), "choices": choices, "usage": self._usage()})

    async def events(self, *, counts_tokens: bool) -> AsyncIterator[str]:
        """Yield server-sent events; those of several answers come one answer after the other."""
        head = self._head("chat.completion.chunk" if self.is_chat else "text_completion")
        no_usage = {"usage": None} if counts_tokens else {}

        def event(*choices: dict[str, Any]) -> str:
            return _event({**head, "choices": choices, **no_usage})

        try:
            for index, answer in enumerate(self.answers):
                if self.is_chat:
                    delta = {"role": "assistant", "content": ""}
                    yield event(self._choice(index, None, {"delta": delta}))
                async for text in answer.pieces():
                    piece = {"delta": {"content": text}} if self.is_chat else {"text": text}
                    yield event(self._choice(index, answer, piece, is_last=False))
                if answer.called and answer.called.calls:
                    numbered = [{"index": i, **x} for i, x in enumerate(answer.called.calls)]
                    yield event(self._choice(index, None, {"delta": {"tool_calls": numbered}}))
                last: dict[str, Any] = {"delta": {}} if self.is_chat else {"text": ""}
                yield event(self._choice(index, answer, last))
        except (GenerationError, TimeoutError) as error:
            yield _event(error_object(failure_of(error)))
            return
        if counts_tokens:
            yield _event({**head, "choices": [], "usage": self._usage()})
        yield "data: [DONE]\n\n"

    def cancel(self) -> None:
        """End the answers that are not complete."""
        for answer in self.answers:
            answer.reply.cancel()

    def _head(self, name: str) -> dict[str, Any]:
        key = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        return {"id": key, "object": name, "created": int(time.time()), "model": self.model}

    def _choice(
        self, index: int, answer: Answer | None, content: Any, *, is_last: bool = True
    ) -> dict[str, Any]:
        reason = answer.finish_reason if answer and is_last else None
        listed = self._logprobs(answer.listed) if answer and answer.listed else None
        if answer:
            answer.listed.clear()
        return {"index": index, **content, "finish_reason": reason, "logprobs": listed}

    def _logprobs(self, listed: Sequence[tuple[TokenLogprobs, int]]) -> dict[str, Any]:
        """Return logarithms of probabilities as those of a chat, or of a completion."""

        def entry(token: int, logprob: float) -> dict[str, Any]:
            text = self.decode([token])
            # The text of a token that is a part of a character is not that of its bytes.
            is_part = "\N{REPLACEMENT CHARACTER}" in text
            parts = None if is_part else list(text.encode(errors="surrogatepass"))
            return {"token": text, "logprob": logprob, "bytes": parts}

        if self.is_chat:
            content = [
                {**entry(x.token, x.logprob), "top_logprobs": [entry(*one) for one in x.top]}
                for x, _ in listed
            ]
            return {"content": content, "refusal": None}
        # Reversed: of two tokens with the same text, the more likely one stays.
        tops = [{self.decode([t]): value for t, value in reversed(x.top)} for x, _ in listed]
        return {
            "tokens": [self.decode([x.token]) for x, _ in listed],
            "token_logprobs": [x.logprob for x, _ in listed],
            "top_logprobs": tops if any(tops) else None,
            "text_offset": [place for _, place in listed],
        }

    def _usage(self) -> dict[str, int]:
        new = sum(answer.tokens for answer in self.answers)
        counts = {"prompt_tokens": self.read_tokens, "completion_tokens": new}
        return {**counts, "total_tokens": self.read_tokens + new}


class Events(StreamingResponse):
    """Server-sent events, which end when the client goes away."""

    def __init__(self, form: Form, events: AsyncIterator[str]) -> None:
        """Send events with the answers of a form."""
        super().__init__(events, headers={"cache-control": "no-cache"})
        # Without "; charset=…", which Starlette adds to text.
        self.headers["content-type"] = "text/event-stream"
        self._form, self._events = form, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; cancel what is not complete."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            # The iterator may not have begun, or stand at a piece that could not be sent.
            self._form.cancel()


class Work(Protocol):
    """What a request waits for."""

    async def whole(self) -> Response:
        """Wait for all of it."""

    def cancel(self) -> None:
        """End what is not complete."""


async def unless_gone(request: Request, work: Work) -> Response:
    """Wait for a response, as long as the client does."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.ensure_future(work.whole()), asyncio.ensure_future(gone())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else Response(status_code=_GONE)
    finally:
        for task in tasks:
            task.cancel()
        work.cancel()


def _message(text: str, answer: Answer) -> dict[str, Any]:
    calls = answer.called.calls if answer.called else []
    if not calls:
        return {"role": "assistant", "content": text}
    return {"role": "assistant", "content": text or None, "tool_calls": calls}


# ---------------------------------------------------------------------- JSON
def json_response(content: Any, status: int = 200) -> Response:
    """Return a response of JSON."""
    # ASCII: a name of the client may have half a surrogate, which UTF-8 does not.
    return Response(json.dumps(content), status, media_type="application/json")


def _event(content: Any) -> str:
    return f"data: {json.dumps(content)}\n\n"


def error_object(error: RequestError) -> dict[str, Any]:
    """Return an error in OpenAI's form."""
    fields = {"type": error.kind, "param": error.param, "code": error.code}
    return {"error": {"message": str(error), **fields}}


def failure_of(error: Exception) -> RequestError:
    """Return the error of a request that was accepted, and then failed."""
    if isinstance(error, TimeoutError):
        return RequestError("the request took too long", 504, "timeout_error", code="timeout")
    return RequestError(str(error) or type(error).__name__, 500, "server_error")
