"""The choice of the next tokens, with the logits processors of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from coreai_onnx.errors import GenerationError, failures_as


@dataclass(frozen=True)
class TokenRules:
    """What a model's configuration says about its tokens, as in transformers' GenerationConfig.

    Attributes:
        repetition_penalty: As for `Settings`, where it is not set there.
        no_repeat_ngram_size: A sequence of this many tokens occurs once.
        forced_bos_token_id: The first token after the one that a decoder starts from.
        forced_eos_token_id: The last token, where nothing ends the sequence before.
        suppress_tokens: Tokens that are not generated.
        begin_suppress_tokens: Tokens that are not generated first.
    """

    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: Any = None
    suppress_tokens: Sequence[int] | None = None
    begin_suppress_tokens: Sequence[int] | None = None


@dataclass(frozen=True)
class Settings:
    """How tokens are chosen, and when generation stops.

    Attributes:
        max_new_tokens: Maximum number of tokens to generate.
        temperature: Divides the logits before sampling.
        top_k: Sample from this many of the most likely tokens.
        top_p: Sample from the most likely tokens whose probabilities add up to this.
        repetition_penalty: Divides the logits of tokens that are there already, see
            https://arxiv.org/abs/1909.05858; 1 leaves them as they are.
        seed: Seed of the random numbers of sampling; None draws one.
        stop_ids: Tokens that end a sequence.
        pad_id: The token after the end of a sequence.
        rules: What the model's configuration says.
    """

    max_new_tokens: int = 64
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop_ids: tuple[int, ...] = ()
    pad_id: int = 0
    rules: TokenRules = TokenRules()

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
        with failures_as(GenerationError, "a setting of the generation is out of range"):
            # A generator starts with the same fixed seed in each process.
            if settings.seed is None:
                self._random.seed()
            else:
                self._random.manual_seed(settings.seed)
            self._processors = LogitsProcessorList(_processors(settings, mask))

    def choose(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Return the next token ids.

        Args:
            ids: The tokens so far, int64 ``[batch, length]``.
            logits: The logits of the next token, ``[batch, vocabulary]``.

        Returns:
            int64 ``[batch]``.
        """
        # Processors put minus infinity into logits, and softmax in float16 would lose small
        # chances.
        scores: torch.Tensor = self._processors(ids, logits.float())
        # No softmax: the largest logit is also the largest probability.
        if not self._samples:
            return scores.argmax(dim=-1)
        chances = torch.softmax(scores, dim=-1)
        return torch.multinomial(chances, 1, generator=self._random).squeeze(1)


def _processors(settings: Settings, mask: torch.Tensor) -> Sequence[object]:
    """Return the processors in the order in which transformers applies them."""
    found: list[object] = []
    penalty = settings.repetition_penalty
    if (penalty := settings.rules.repetition_penalty if penalty is None else penalty) is not None:
        # The processor must not count the padding token as one that is there already.
        padding = None if bool(mask.all()) else mask.argmax(dim=1)
        found.append(RepetitionPenaltyLogitsProcessor(penalty, padding))
    found += _of_rules(settings.rules, mask.shape[1], settings.max_new_tokens)
    if settings.temperature is not None:
        found.append(TemperatureLogitsWarper(settings.temperature))
    if settings.top_k is not None:
        found.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p is not None:
        found.append(TopPLogitsWarper(settings.top_p))
    return found


def _of_rules(rules: TokenRules, start: int, new: int) -> list[object]:
    """Return the processors of a model's configuration.

    Args:
        rules: The configuration.
        start: Number of tokens of the prompt.
        new: Maximum number of new tokens.
    """
    found: list[object] = []
    if rules.no_repeat_ngram_size:
        found.append(NoRepeatNGramLogitsProcessor(rules.no_repeat_ngram_size))
    if rules.forced_bos_token_id is not None:
        found.append(ForcedBOSTokenLogitsProcessor(rules.forced_bos_token_id))
    if rules.forced_eos_token_id is not None:
        # It is forced at the last place of the whole length, which includes the prompt.
        found.append(ForcedEOSTokenLogitsProcessor(start + new, rules.forced_eos_token_id))
    if rules.suppress_tokens:
        found.append(SuppressTokensLogitsProcessor(rules.suppress_tokens))
    if rules.begin_suppress_tokens:
        # A forced first token comes before the first that is chosen, as in transformers.
        first = start + int(start == 1 and rules.forced_bos_token_id is not None)
        found.append(SuppressTokensAtBeginLogitsProcessor(rules.begin_suppress_tokens, first))
    return found
