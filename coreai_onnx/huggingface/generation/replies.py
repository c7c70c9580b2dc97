"""Replies of an engine: streams of tokens or text for threads and for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface.generation.streamed_text import StreamedText

_LEAST = -9999.0
"""The logarithm of a probability of 0, as OpenAI writes it: JSON has no infinity."""


@dataclass(frozen=True)
class TokenLogprobs:
    """The logarithms of probabilities where a token was chosen.

    Attributes:
        token: The token.
        logprob: Its logarithm, at least -9999.
        top: The most likely tokens with theirs, the first one first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def listed_logprobs(logprobs: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    """List a token, and the most likely ones, from the logarithms ``[vocabulary]`` of all."""
    finite = logprobs.nan_to_num(_LEAST).clamp(min=_LEAST)
    values, tokens = finite.topk(min(count, len(finite)))
    top = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
    return TokenLogprobs(token, float(finite[token]), top)


class Channel:
    """What a request has produced so far; the engine writes, and one client reads.

    Attributes:
        cancelled: Whether the client wants no more.
        finish_reason: Why the reply ended; None while it runs.
        logprobs: Those of each token, if the request asks for them.
    """

    def __init__(self) -> None:
        """Start without pieces."""
        self.logprobs: list[TokenLogprobs] = []
        self.cancelled = False
        self.finish_reason: str | None = None
        self._error: BaseException | None = None
        self._pieces: deque[Any] = deque()
        self._changed = threading.Condition()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def put(self, piece: Any) -> None:
        """Add a piece."""
        with self._changed:
            self._pieces.append(piece)
            self._wake()

    def end(self, reason: str, error: BaseException | None = None) -> None:
        """End the reply; the client gets the error after the pieces."""
        with self._changed:
            self.finish_reason, self._error = reason, error
            self._wake()

    def cancel(self) -> None:
        """Ask for no more."""
        self.cancelled = True

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the next piece.

        Raises:
            StopIteration: If the reply has ended.
            TimeoutError: If there is none in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._pieces or self.finish_reason, timeout):
                raise TimeoutError(f"no token in {timeout} s")
            return self._next()

    async def aget(self) -> Any:
        """Wait for the next piece without blocking the event loop; else as `get`."""
        loop = asyncio.get_running_loop()
        while True:
            with self._changed:
                if self._pieces or self.finish_reason:
                    try:
                        return self._next()
                    except StopIteration:
                        raise StopAsyncIteration from None
                future = loop.create_future()
                self._waiting.append((loop, future))
            await future

    def _next(self) -> Any:
        if self._pieces:
            return self._pieces.popleft()
        if self._error is not None:
            raise self._error
        raise StopIteration

    def _wake(self) -> None:
        self._changed.notify_all()
        for loop, future in self._waiting:
            # A client may have closed its loop.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_set, future)
        self._waiting.clear()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Reply:
    """The reply to a request: an iterator of tokens, or of text for a prompt of text.

    ```python
    for piece in engine.submit("Once upon a time"):
        print(piece, end="")
    async for piece in engine.submit("Once upon a time"):
        ...
    ```

    A reply that nobody holds any more is cancelled, as is one that a client breaks off and drops.
    """

    def __init__(self, channel: Channel, prompt: Sequence[int] | None) -> None:
        """Read a channel.

        Args:
            channel: What the engine writes to.
            prompt: The tokens before the reply; None for text.
        """
        self._channel, self._prompt = channel, prompt

    @property
    def finish_reason(self) -> str | None:
        """``"stop"``, ``"length"``, ``"cancelled"``, ``"error"``; None while it runs."""
        return self._channel.finish_reason

    @property
    def logprobs(self) -> Sequence[TokenLogprobs]:
        """Those of each token so far, if ``top_logprobs`` was given; else empty."""
        return self._channel.logprobs

    def cancel(self) -> None:
        """End the reply before its next token; other requests are not affected."""
        self._channel.cancel()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the whole reply, and return what `generate` would.

        Args:
            timeout: Seconds to wait for each piece; None waits as long as it takes.

        Returns:
            The new text; for token ids, the prompt with the new ones, int64 ``[length]``. Pieces
            that were read from the iterator before are left out.

        Raises:
            TimeoutError: If there is no piece in time.
            GenerationError: If the request failed, or the engine was closed.
        """
        pieces = []
        with contextlib.suppress(StopIteration):
            while True:
                pieces.append(self._channel.get(timeout))
        if self._prompt is None:
            return "".join(pieces)
        return np.array([*self._prompt, *pieces], np.int64)

    def __iter__(self) -> Reply:
        """Return the reply itself."""
        return self

    def __next__(self) -> Any:
        """Wait for the next piece."""
        return self._channel.get()

    def __aiter__(self) -> Reply:
        """Return the reply itself."""
        return self

    async def __anext__(self) -> Any:
        """Wait for the next piece."""
        return await self._channel.aget()

    def __del__(self) -> None:
        """Cancel what nobody will read."""
        self._channel.cancel()


@dataclass
class StoppedText:
    """The text of a reply up to the first stop string, which may span tokens.

    Attributes:
        text: The text of the tokens.
        stops: The stop strings.
        held: Text that may be the beginning of one of them.
    """

    text: StreamedText
    stops: Sequence[str] = ()
    held: str = ""

    def add(self, token: int) -> tuple[str, bool]:
        """Return the text that is final after a token, and whether a stop string ended it."""
        text = self.held + self.text.add(token)
        if (end := self._end(text)) is not None:
            return text[:end], True
        starts = (stop[:n] for stop in self.stops for n in range(1, len(stop)))
        kept = max((len(start) for start in starts if text.endswith(start)), default=0)
        self.held = text[len(text) - kept :]
        return text[: len(text) - kept], False

    def rest(self) -> str:
        """Return what is left when no token follows, also half a character."""
        text = self.held + self.text.rest()
        return text[: self._end(text)]

    def _end(self, text: str) -> int | None:
        """Return where the first stop string begins."""
        places = (text.find(stop) for stop in self.stops)
        return min((place for place in places if place >= 0), default=None)


def checked_stops(stop: str | Sequence[str] | None, *, is_text: bool) -> tuple[str, ...]:
    """Return stop strings as a tuple.

    Raises:
        GenerationError: If one is empty or no text, or the prompt is token ids.
    """
    stops = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(one, str) and one for one in stops):
        raise GenerationError(f"stop={stop!r:.80} must be text, or a list of texts")
    if stops and not is_text:
        raise GenerationError("stop ends text, and the prompt is token ids; give stop_ids")
    return stops
