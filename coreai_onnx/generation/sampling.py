"""The choice of the next tokens, with the logits processors of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from coreai_onnx.errors import GenerationError, failures_as


@dataclass(frozen=True)
class Settings:
    """How tokens are chosen, and when generation stops.

    Attributes:
        max_new_tokens: Maximum number of tokens to generate.
        temperature: Divides the logits before sampling.
        top_k: Sample from this many of the most likely tokens.
        top_p: Sample from the most likely tokens whose probabilities add up to this.
        repetition_penalty: Divides the logits of tokens that are there already, see
            https://arxiv.org/abs/1909.05858; 1 is none.
        seed: Seed of the random numbers of sampling; None draws one.
        stop_ids: Tokens that end a sequence.
        pad_id: The token after the end of a sequence.
    """

    max_new_tokens: int = 64
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop_ids: tuple[int, ...] = ()
    pad_id: int = 0

    def __post_init__(self) -> None:
        """Check the number of tokens; transformers checks the rest.

        Raises:
            GenerationError: If it is not a positive number.
        """
        if not (isinstance(self.max_new_tokens, int) and self.max_new_tokens > 0):
            raise GenerationError(
                f"max_new_tokens={self.max_new_tokens!r}; give a number of at least 1"
            )

    @property
    def samples(self) -> bool:
        """Whether tokens are sampled; otherwise the most likely one is chosen."""
        return not (self.temperature is self.top_k is self.top_p is None)


class Sampler:
    """Chooses the next token of each sequence.

    Args:
        settings: The settings.
        mask: 1 for tokens of the prompts and 0 for padding, ``[batch, length]``.
    """

    def __init__(self, settings: Settings, mask: torch.Tensor) -> None:
        """Build the processors.

        Raises:
            GenerationError: If a setting is out of range.
        """
        self._samples = settings.samples
        self._random = torch.Generator()
        if settings.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(settings.seed)
        with failures_as(GenerationError, "a setting of the generation is out of range"):
            self._processors = LogitsProcessorList(_processors(settings, mask))

    def choose(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Return the next token ids.

        Args:
            ids: The tokens so far, int64 ``[batch, length]``.
            logits: The logits of the next token, ``[batch, vocabulary]``.

        Returns:
            int64 ``[batch]``.
        """
        scores: torch.Tensor = self._processors(ids, logits.float())
        if not self._samples:
            return scores.argmax(dim=-1)
        chances = torch.softmax(scores, dim=-1)
        return torch.multinomial(chances, 1, generator=self._random).squeeze(1)


def _processors(settings: Settings, mask: torch.Tensor) -> Sequence[object]:
    """Return the processors in the order in which transformers applies them."""
    found: list[object] = []
    if settings.repetition_penalty is not None:
        padding = None if bool(mask.all()) else mask.argmax(dim=1)
        found.append(RepetitionPenaltyLogitsProcessor(settings.repetition_penalty, padding))
    if settings.temperature is not None:
        found.append(TemperatureLogitsWarper(settings.temperature))
    if settings.top_k is not None:
        found.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p is not None:
        found.append(TopPLogitsWarper(settings.top_p))
    return found
