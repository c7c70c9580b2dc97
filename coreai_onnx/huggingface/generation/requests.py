"""Requests of an engine: how their tokens are chosen, and when their replies end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from coreai_onnx.huggingface.generation.paged_stream import CacheRow
from coreai_onnx.huggingface.generation.replies import Channel, StoppedText, listed_logprobs


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
            return int(scores.argmax())
        return int(torch.multinomial(torch.softmax(scores, dim=-1), 1, generator=random))


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
