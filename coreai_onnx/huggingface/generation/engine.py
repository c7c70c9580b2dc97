"""An engine that serves many requests with one decoder, a step at a time."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self, TypedDict, Unpack

import torch
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from coreai_onnx.errors import GenerationError, QueueFullError, failures_as
from coreai_onnx.huggingface.generation.configuration import Options, checked_options, is_stepwise
from coreai_onnx.huggingface.generation.paged_stream import CacheRow, PagedStream
from coreai_onnx.huggingface.generation.prompts import Prompt
from coreai_onnx.huggingface.generation.replies import Channel, Reply, StoppedText, checked_stops
from coreai_onnx.huggingface.generation.requests import (
    Choice,
    Draft,
    Guess,
    Lookup,
    Request,
    choice,
)
from coreai_onnx.huggingface.generation.session_model import SessionModel
from coreai_onnx.huggingface.generation.streamed_text import StreamedText
from coreai_onnx.huggingface.transformers_names import CACHE
from coreai_onnx.runtime.sessions.session import Session

_TOKENS = 1024
"""Tokens of a slot by default, at most."""
_CANDIDATES = ("assistant_model", "prompt_lookup_num_tokens")
_REFUSED = ("adapter", "attention_mask", "images", "audio", "num_return_sequences")


class Settings(TypedDict, total=False):
    """The settings of an `Engine`."""

    slots: int
    tokens: int | None
    chunk: int
    prompts: int
    queue: int


class EngineModel(Protocol):
    """What an engine needs of a `LanguageModel`."""

    @property
    def session(self) -> Session:
        """The session of the decoder."""

    @property
    def encoder(self) -> Session | None:
        """The session of the encoder, of a model that has one."""

    @property
    def context(self) -> int | None:
        """The longest text that the model knows."""

    @property
    def transformers_model(self) -> Any:
        """The model as one of transformers."""

    def arguments(self, prompt: Any, checked: Mapping[str, Any]) -> tuple[Prompt, dict[str, Any]]:
        """Return a prompt, and the arguments of transformers' ``generate``."""

    def text(self, tokens: Any) -> str:
        """Return the text of tokens."""


class Engine:
    """Serves many requests at once, each as if it were alone.

    ```python
    with LanguageModel.open("my_llama_paged").engine(slots=16) as engine:
        replies = [engine.submit(prompt) for prompt in prompts]
        print([reply.result() for reply in replies])
    ```

    A thread runs while there are requests. In each step it reads one chunk of one prompt, and of
    others whose chunks have as many tokens, and then computes one token for all rows whose prompts
    are read. A running reply therefore waits for a few chunks and one token of all rows, at most.

    Requests of higher priority start first, and those of equal priority in order of arrival. A
    request starts when a slot is free, and blocks for its prompt and all tokens that it may
    generate: one that has started is never put off.

    Args:
        model: A `LanguageModel` that was exported with ``cache="paged"``.
        slots: The number of rows that are served at once.
        tokens: The cached tokens of all rows; by default, as many as the model knows for each slot,
            and at most 1,024.
        chunk: The tokens of a prompt that are read between two steps.
        prompts: The prompts of which a chunk is read between two steps, at most.
        queue: The number of requests that may wait.

    Raises:
        GenerationError: If the model has another cache, a setting is not valid, or the machine
            does not have the memory.
    """

    def __init__(
        self,
        model: EngineModel,
        *,
        slots: int = 16,
        tokens: int | None = None,
        chunk: int = 128,
        prompts: int = 4,
        queue: int = 256,
    ) -> None:
        """Allocate the cache."""
        if tokens is None and type(slots) is int:
            tokens = slots * min(model.context or _TOKENS, _TOKENS)
        settings = Settings(slots=slots, tokens=tokens, chunk=chunk, prompts=prompts, queue=queue)
        for name, value in settings.items():
            if type(value) is not int or value < 1:
                raise GenerationError(f"{name}={value!r:.40} must be an integer of 1 or more")
        assert tokens is not None
        self._model, self._queue, self._slots, self._prompts = model, queue, slots, prompts
        self._stream = PagedStream(
            model.session, slots, tokens, chunk, model.context, model.encoder
        )
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int, Request]] = []
        self._reading: list[tuple[int, int, Request]] = []
        self._running: list[Request] = []
        self._arrivals = 0
        self._thread: threading.Thread | None = None
        self._serves = False
        self._closed = False

    def submit(
        self,
        prompt: Any,
        *,
        priority: int = 0,
        stop: str | Sequence[str] | None = None,
        top_logprobs: int | None = None,
        **options: Unpack[Options],
    ) -> Reply:
        """Add a request, and return its reply at once.

        Args:
            prompt: Text or token ids, as for `generate`; one prompt.
            priority: Requests with a higher one start first.
            stop: Strings that end a reply of text; they are not part of it.
            top_logprobs: Lists the logarithm of the probability of each token, and as many of the
                most likely ones, in ``logprobs`` of the reply: the log softmax of the model's
                logits, before temperature, penalties and logits processors.
            **options: As for `generate`, but those of beams, adapters and pictures. Candidates, of
                ``prompt_lookup_num_tokens`` or an exported ``assistant_model``, change no reply,
                sampled ones included.

        Returns:
            The reply, an iterator for threads and for asyncio.

        Raises:
            QueueFullError: If as many requests are waiting as the queue holds, beside those that
                free slots will take.
            GenerationError: If an option is not valid, the prompt and ``max_new_tokens`` are more
                tokens than the cache holds, or the engine is closed.
        """
        if type(priority) is not int:
            raise GenerationError(f"priority={priority!r:.40} must be an integer")
        if top_logprobs is not None and (type(top_logprobs) is not int or top_logprobs < 0):
            raise GenerationError(
                f"top_logprobs={top_logprobs!r:.40} must be an integer, 0 or more"
            )
        request, reply = self._request(prompt, stop, options)
        request.top_logprobs = top_logprobs
        with self._lock:
            if self._closed:
                raise GenerationError("the engine is closed")
            free = self._slots - len(self._reading) - len(self._running)
            if len(self._waiting) >= self._queue + free:
                raise QueueFullError(f"{self._queue} requests are waiting already: try later")
            self._arrivals += 1
            heapq.heappush(self._waiting, (-priority, self._arrivals, request))
            if not self._serves:
                self._serves = True
                self._thread = threading.Thread(target=self._serve, name="coreai_onnx engine")
                self._thread.start()
        return reply

    def close(self) -> None:
        """End all requests with a `GenerationError`, and release the cache."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._stream.close()

    def __enter__(self) -> Self:
        """Return the engine."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    @property
    def longest(self) -> int:
        """The most tokens of a prompt and its reply."""
        return self._stream.longest

    @property
    def statistics(self) -> Mapping[str, int]:
        """Requests that wait, read their prompt and run; free blocks; tokens read and shared."""
        with self._lock:
            return {
                "waiting": len(self._waiting),
                "reading": len(self._reading),
                "running": len(self._running),
                "free_blocks": self._stream.free_blocks,
                "read_tokens": self._stream.read_tokens,
                "shared_tokens": self._stream.shared_tokens,
            }

    def _request(
        self, prompt: Any, stop: str | Sequence[str] | None, options: Options
    ) -> tuple[Request, Reply]:
        """Check a request, in the thread of the client."""
        checked = checked_options(options, self._model.session)
        if refused := [name for name in _REFUSED if name in checked]:
            raise GenerationError(f"an engine does not take {refused[0]}; use generate")
        if not is_stepwise({name: x for name, x in checked.items() if name not in _CANDIDATES}):
            raise GenerationError("an engine chooses token by token, without beams")
        asked, arguments = self._model.arguments(prompt, checked)
        guess = self._guess(*(arguments.pop(name, None) for name in _CANDIDATES))
        if not asked.is_single:
            raise GenerationError("a request has one prompt: submit each of them")
        stops = checked_stops(stop, is_text=asked.is_text)
        random = torch.Generator()
        source: list[int] = []
        if self._model.encoder is not None:
            source = asked.ids[0].tolist()
            # The encoder runs when the request has a slot; transformers would run it now.
            arguments["encoder_outputs"] = BaseModelOutput(last_hidden_state=torch.zeros(1, 1, 1))
        with failures_as(GenerationError, "the request is not valid"), torch.no_grad():
            # A generator starts with the same fixed seed in each process.
            random.manual_seed(checked["seed"]) if "seed" in checked else random.seed()
            chosen: Choice = self._model.transformers_model.generate(
                **arguments, custom_generate=choice, **{CACHE: DynamicCache()}
            )
        ids = chosen.ids
        most = int(chosen.settings.max_length)
        self._stream.check(most, ids.shape[1], len(source))
        text = StoppedText(StreamedText(self._model.text), stops) if asked.is_text else None
        prompt_ids = ids[0].tolist()
        channel = Channel()
        request = Request(channel, chosen, prompt_ids, most, random, text, ids=ids, source=source)
        request.guess = guess
        return request, Reply(channel, None if asked.is_text else prompt_ids)

    def _guess(self, assistant: Any, lookup: int | None) -> Guess | None:
        """Return what proposes candidates, of a smaller model or of the text so far."""
        if assistant is None and lookup is None:
            return None
        if not self._stream.is_rewindable:
            raise GenerationError(
                "candidates need a cache of keys and values: recurrent states cannot be taken back"
            )
        if assistant is None:
            return Lookup(lookup or 1)
        if not isinstance(assistant, SessionModel) or assistant.config.is_encoder_decoder:
            raise GenerationError("assistant_model must be the folder of an exported decoder")
        own, size = self._model.transformers_model.config.vocab_size, assistant.config.vocab_size
        if size != own:
            raise GenerationError(f"assistant_model knows {size} tokens, and the model {own}")
        return Draft(assistant.decoding())

    # ------------------------------------------------------------------ in the thread
    def _serve(self) -> None:
        """Serve requests until there are none."""
        with torch.no_grad():
            while self._has_requests():
                self._leave_cancelled()
                self._join()
                self._read()
                self._step()

    def _has_requests(self) -> bool:
        with self._lock:
            if self._closed:
                error = GenerationError("the engine was closed before the reply was complete")
                queued = [request for *_, request in (*self._waiting, *self._reading)]
                self._waiting.clear()
                self._reading.clear()
                for request in [*queued, *self._running]:
                    self._leave(request, "error", error)
            if self._waiting or self._reading or self._running:
                return True
            # Under the lock: a request that arrives from now on starts another thread.
            self._serves = False
            return False

    def _leave_cancelled(self) -> None:
        with self._lock:
            for queue in (self._waiting, self._reading):
                for entry in [one for one in queue if one[-1].channel.cancelled]:
                    queue.remove(entry)
                    self._leave(entry[-1], "cancelled")
            heapq.heapify(self._waiting)
            for request in [one for one in self._running if one.channel.cancelled]:
                self._leave(request, "cancelled")

    def _join(self) -> None:
        """Give slots and blocks to the first requests, as long as there are any."""
        with self._lock:
            while self._waiting and len(self._reading) + len(self._running) < self._slots:
                priority, arrival, request = self._waiting[0]
                request.row = self._stream.join(request.prompt, request.most, request.source)
                # Later ones might fit, and would keep a long one waiting forever.
                if request.row is None:
                    return
                heapq.heappop(self._waiting)
                heapq.heappush(self._reading, (priority, arrival, request))

    def _read(self) -> None:
        """Read a chunk of the first prompt, and of others whose chunks have as many tokens."""
        queue = [(x, x.row) for *_, x in sorted(self._reading) if x.row is not None]
        places = self._stream.together([row for _, row in queue], self._prompts)
        self._read_chunks([queue[place] for place in places])

    def _read_chunks(self, chunks: Sequence[tuple[Request, CacheRow]]) -> None:
        if not chunks:
            return
        try:
            logits = self._stream.read([row for _, row in chunks])
        except Exception as error:  # noqa: BLE001 - whatever the model raises is the client's
            if len(chunks) == 1:
                self._fail([chunks[0][0]], error)
                return
            # The call has changed no state: only a request that fails alone has failed.
            for chunk in chunks:
                self._read_chunks([chunk])
            return
        read = {r: x for (r, _), x in zip(chunks, logits, strict=True) if x is not None}
        with self._lock:
            self._reading = [entry for entry in self._reading if entry[-1] not in read]
            heapq.heapify(self._reading)
            self._running += read
        self._choose(list(read), list(read.values()))

    def _step(self) -> None:
        """Compute the next token of all rows whose prompts are read."""
        for request in list(self._running):
            try:
                request.propose()
            except Exception as error:  # noqa: BLE001 - as above, of the smaller model
                self._fail([request], error)
        rows = [(request, request.row) for request in self._running if request.row is not None]
        if not rows:
            return
        try:
            logits = self._stream.step([row for _, row in rows])
        except Exception as error:  # noqa: BLE001 - as above
            self._fail([request for request, _ in rows], error)
            return
        self._choose([request for request, _ in rows], logits)

    def _choose(self, requests: Sequence[Request], logits: Sequence[torch.Tensor]) -> None:
        for request, scores in zip(requests, logits, strict=True):
            try:
                reason = request.choose_all(scores)
            except Exception as error:  # noqa: BLE001 - a processor of the client may raise any
                self._fail([request], error)
                continue
            if reason:
                with self._lock:
                    self._leave(request, reason)

    def _fail(self, requests: Sequence[Request], error: Exception) -> None:
        failure = GenerationError(f"the request failed: {error}")
        failure.__cause__ = error
        with self._lock:
            for request in requests:
                self._reading = [one for one in self._reading if one[-1] is not request]
                self._leave(request, "error", failure)
            heapq.heapify(self._reading)

    def _leave(self, request: Request, reason: str, error: BaseException | None = None) -> None:
        """End a request; its blocks and its slot are free for others."""
        if request in self._running:
            self._running.remove(request)
        if request.row is not None:
            self._stream.leave(request.row)
            request.row = None
        request.channel.end(reason, error)
