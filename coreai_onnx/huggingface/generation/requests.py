"""Requests of an engine: how their tokens are chosen, and when their replies end."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from coreai_onnx.huggingface.generation.decoding import Decoding
from coreai_onnx.huggingface.generation.paged_stream import CacheRow
from coreai_onnx.huggingface.generation.replies import Channel, StoppedText, listed_logprobs
from coreai_onnx.huggingface.transformers_names import PromptLookupCandidateGenerator

_DRAFTED = 5
"""Tokens that a smaller model proposes in a step."""


@dataclass(frozen=True)
class Choice:
    """How the tokens of a request are chosen, by objects of transformers.

    Attributes:
        processors: Change the logits.
        criteria: Tell when the reply ends.
        settings: The settings.
        ids: The tokens to start from, int64 ``[1, length]``.
    """

    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    settings: GenerationConfig
    ids: torch.Tensor

    def token(self, ids: torch.Tensor, scores: torch.Tensor, random: torch.Generator) -> int:
        """Return the next token after those of a row, int64 ``[1, length]``."""
        for processor in self.processors:
            scores = processor(ids, scores)
        if not self.settings.do_sample:
            return _most_likely(scores)
        return int(torch.multinomial(torch.softmax(scores, dim=-1), 1, generator=random))


def _most_likely(scores: torch.Tensor) -> int:
    """Return the index of the largest score."""
    # torch's argmax takes 0.7 ms for a vocabulary of 262,144 tokens, and numpy's 0.06 (2026-11).
    return int(scores.numpy().argmax())


Guess = Callable[[torch.Tensor], list[int]]
"""Returns tokens that may follow others, int64 ``[1, length]``."""


class Lookup:
    """Proposes what followed the last tokens where they occur before.

    Args:
        count: The most tokens to propose.
    """

    def __init__(self, count: int) -> None:
        """Take the number."""
        self._generator = PromptLookupCandidateGenerator(
            num_output_tokens=count, max_length=sys.maxsize
        )

    def __call__(self, ids: torch.Tensor) -> list[int]:
        """Return the tokens."""
        found, _ = self._generator.get_candidates(ids)
        tokens: list[int] = found[0, ids.shape[1] :].tolist()
        return tokens


class Draft:
    """Proposes what a smaller model chooses, greedily.

    Args:
        decoding: A new stream of the model.
    """

    def __init__(self, decoding: Decoding) -> None:
        """Take the stream."""
        self._decoding = decoding

    def __call__(self, ids: torch.Tensor) -> list[int]:
        """Return the tokens."""
        decoding = self._decoding
        pairs = zip(decoding.ids.flatten().tolist(), ids[0, :-1].tolist(), strict=False)
        kept = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        decoding.crop(kept - decoding.get_seq_length())
        decoding.extend(ids[:, kept:])
        tokens = [_most_likely(decoding.logits())]
        while len(tokens) < _DRAFTED:
            decoding.extend(torch.tensor([tokens[-1:]]))
            tokens.append(_most_likely(decoding.logits()))
        return tokens


@dataclass(eq=False)  # tensors have no truth value
class Request:
    """A request with its row.

    Attributes:
        channel: Where its pieces go.
        choice: How its tokens are chosen.
        prompt: The tokens of the prompt.
        most: The most tokens that the row will have.
        random: Draws the samples.
        text: The text of the reply; None for tokens.
        row: The row, while it is served.
        ids: The tokens so far, int64 ``[1, length]``.
        top_logprobs: The likely tokens to list beside each chosen one; None lists nothing.
        source: The tokens that an encoder reads.
        guess: Proposes tokens that may follow; None proposes nothing.
    """

    channel: Channel
    choice: Choice
    prompt: list[int]
    most: int
    random: torch.Generator
    text: StoppedText | None
    row: CacheRow | None = None
    ids: torch.Tensor = field(default_factory=lambda: torch.zeros(1, 0, dtype=torch.int64))
    top_logprobs: int | None = None
    source: Sequence[int] = ()
    guess: Guess | None = None

    def propose(self) -> None:
        """Let the row read candidates beside its last token, as far as it has places."""
        assert self.row is not None
        room = self.most - self.row.read - 1
        self.row.candidates = self.guess(self.ids)[:room] if self.guess and room > 0 else ()

    def choose_all(self, scores: torch.Tensor) -> str:
        """Choose tokens as long as each is the candidate that was read after it.

        Each is chosen as if it were alone, by the same processors and random numbers, so that
        candidates change no reply.

        Args:
            scores: The logits after the last token and each candidate, ``[tokens, vocabulary]``.

        Returns:
            Why the reply ends; nothing if it goes on.
        """
        assert self.row is not None
        for place in range(len(scores)):
            reason = self.choose(scores[place : place + 1])
            if reason or self.row.candidates[place : place + 1] != [self.row.last]:
                return reason
            self.row.read += 1
        return ""

    def choose(self, scores: torch.Tensor) -> str:
        """Choose the next token from logits ``[1, vocabulary]``; return why the reply ends."""
        assert self.row is not None
        # A processor may change the logits in place.
        logprobs = None if self.top_logprobs is None else scores[0].log_softmax(0)
        token = self.choice.token(self.ids, scores, self.random)
        if logprobs is not None:
            self.channel.logprobs.append(listed_logprobs(logprobs, token, self.top_logprobs or 0))
        self.row.last = token
        self.ids = torch.cat([self.ids, torch.tensor([[token]])], dim=1)
        ends = bool(self.choice.criteria(self.ids, None).all())
        if self.text is None:
            self.channel.put(token)
        else:
            piece, stopped = self.text.add(token)
            if piece:
                self.channel.put(piece)
            if stopped:
                return "stop"
            if ends and (piece := self.text.rest()):
                self.channel.put(piece)
        if not ends:
            return ""
        return "length" if self.ids.shape[1] >= self.choice.settings.max_length else "stop"


def choice(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    **inputs: Any,
) -> Choice:
    """Return what transformers' ``generate`` has prepared, in place of generating."""
    del model, inputs
    return Choice(logits_processor, stopping_criteria, generation_config, input_ids)
