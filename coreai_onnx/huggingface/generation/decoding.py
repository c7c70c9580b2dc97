"""Steps of a decoder in a session: tokens in, logits of the next token out."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface.generation.prompts import Prompt
from coreai_onnx.huggingface.generation.sampling import Sampler, Settings
from coreai_onnx.messages import size_text
from coreai_onnx.model.interface import CAPACITY, TensorInfo
from coreai_onnx.runtime.sessions.session import Session

_ENCODED = {"encoder_hidden_states", "encoder_attention_mask", "use_cache_branch"}
_INPUTS = {"input_ids", "attention_mask", "position_ids", "cache_position", *_ENCODED}


class Decoding:
    """One batch of sequences in a stream of a session.

    The session is that of an exported decoder (``input_ids``, ``attention_mask``, ``position_ids``
    and states), of a decoder with a static cache (``input_ids``, ``cache_position`` and states), or
    of a decoder without a cache, which reads all tokens in every step.

    Args:
        session: The session; its states do not change.
        prompt: The prompts.
        capacity: Number of tokens that a cache of fixed capacity is to hold.
        fixed: Inputs that are the same in every step: the result of an encoder.
    """

    def __init__(
        self,
        session: Session,
        prompt: Prompt,
        capacity: int,
        fixed: Mapping[str, Any] | None = None,
    ) -> None:
        """Start a stream.

        Raises:
            GenerationError: If the model is not a decoder with these inputs, or the batch does not
                fit it.
        """
        self._names = {info.name for info in (*session.inputs, *session.optional_inputs)}
        check_decoder(session)
        # Padding without a mask would be read as text.
        if "attention_mask" not in self._names and not bool(prompt.mask.all()):
            raise GenerationError(
                "the prompts have different lengths, and the model has no attention_mask: "
                "give one prompt at a time"
            )
        self._stream = session.stream()
        self._has_cache = bool(session.states)
        self.ids, self._mask = prompt.ids, prompt.mask
        self._read, self._fixed = 0, dict(fixed or {})
        self._feeds: dict[str, Any] = _empty_states(session, len(prompt.ids), capacity)

    def logits(self) -> torch.Tensor:
        """Read the unread tokens and return the last logits, ``[batch, vocabulary]``."""
        return torch.from_numpy(np.asarray(self.read(1)[:, -1], np.float32))

    def read(self, count: int) -> Any:
        """Read the unread tokens and return logits, ``[batch, tokens, vocabulary]``.

        Args:
            count: How many of the last tokens to return logits of, if the model has a choice; 0 for
                all of them.
        """
        outputs = self._stream.run(**self.feeds(count))
        # The stream holds the states from now on; the empty ones start it only.
        self._feeds, self._read = {}, self.ids.shape[1]
        # Files of others may name it in another way; logits come first in all of them.
        return outputs["logits"] if "logits" in outputs.names else outputs[0]

    def feeds(self, count: int) -> dict[str, Any]:
        """Return the inputs of the next step; the states of the first one are empty.

        Args:
            count: As for `read`.
        """
        # Without a cache, every step reads all tokens.
        start = self._read if self._has_cache else 0
        # Prompts are padded on the left: positions count from the first token, and padding has 0.
        positions = (self._mask.cumsum(1) - 1).clamp(min=0)
        feeds = {
            "input_ids": self.ids[:, start:],
            "attention_mask": self._mask,
            "position_ids": positions[:, start:],
            "cache_position": torch.arange(start, self.ids.shape[1]),
            "num_logits_to_keep": np.array(count),
            "use_cache_branch": torch.tensor([start > 0]),
            **self._fixed,
        }
        given = {name: value for name, value in feeds.items() if name in self._names}
        return {**given, **self._feeds}

    def append(self, tokens: torch.Tensor) -> None:
        """Append one token to each sequence, int64 ``[batch]``."""
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=1)
        self._mask = torch.cat([self._mask, torch.ones_like(tokens)[:, None]], dim=1)

    def close(self) -> None:
        """Release the states."""
        self._stream.close()


def generated(
    session: Session,
    prompt: Prompt,
    settings: Settings,
    fixed: Mapping[str, Any] | None = None,
) -> Iterator[torch.Tensor]:
    """Yield the next token of each sequence, int64 ``[batch]``, until all sequences have ended.

    Args:
        session: The session of the decoder.
        prompt: The tokens to start from.
        settings: The settings.
        fixed: As for `Decoding`.

    Raises:
        GenerationError: If the model is not a decoder, the prompt is longer than its cache, or a
            setting is out of range.
    """
    _check_length(session, prompt, settings)
    capacity = prompt.ids.shape[1] + settings.max_new_tokens
    sampler, decoding = Sampler(settings, prompt.mask), Decoding(session, prompt, capacity, fixed)
    running = torch.ones(len(prompt.ids), dtype=torch.bool)
    stops = torch.tensor(settings.stop_ids, dtype=torch.int64)
    try:
        for _ in range(settings.max_new_tokens):
            tokens = sampler.choose(decoding.ids, decoding.logits())
            # A batch runs until its last sequence ends: the others are padded meanwhile.
            tokens = torch.where(running, tokens, settings.pad_id)
            yield tokens
            running &= ~torch.isin(tokens, stops)
            if not running.any():
                return
            decoding.append(tokens)
    finally:
        # Also if the caller stops reading: closing the generator runs this.
        decoding.close()


def logits_of(session: Session, prompt: Prompt) -> torch.Tensor:
    """Return the logits after each token of prompts, float32 ``[batch, length, vocabulary]``.

    Args:
        session: The session of the decoder.
        prompt: The prompts.

    Raises:
        GenerationError: If the model is not a decoder that returns them, or a prompt is longer than
            its cache.
    """
    _check_length(session, prompt, Settings(max_new_tokens=1))
    decoding = Decoding(session, prompt, prompt.ids.shape[1])
    try:
        logits = np.asarray(decoding.read(0), np.float32)
    finally:
        decoding.close()
    if logits.shape[:2] != prompt.ids.shape:
        raise GenerationError(
            f"the model returns logits {list(logits.shape)} for {list(prompt.ids.shape)} tokens; "
            "the logits after each token are needed"
        )
    return torch.from_numpy(logits)


def check_decoder(session: Session) -> None:
    """Check that a model is a decoder.

    Raises:
        GenerationError: If it takes or returns something else.
    """
    names = {info.name for info in session.inputs}
    first = session.outputs[0] if session.outputs else None
    rank = -1 if first is None else len(first.dims)
    if "input_ids" not in names or names - _INPUTS or rank != 3:
        raise GenerationError(
            "the model is not a decoder: it takes input_ids, attention_mask and position_ids, or "
            f"input_ids and cache_position, and returns logits [batch, sequence, vocabulary]\n"
            f"{session!r}\n  export it with coreai_onnx.export_model"
        )


def _empty_states(session: Session, batch: int, capacity: int) -> dict[str, Any]:
    """Return an empty value for each state that has no initial value in the file.

    The length of keys and values is the capacity where it is fixed, and 0 otherwise.
    """
    known = session.stream().state
    # The batch has the name that the exporter gave it; other dims of a state are empty.
    ids = next(info for info in session.inputs if info.name == "input_ids")
    return {
        info.name: _empty(info, {ids.dims[0]: batch, CAPACITY: capacity})
        for info in session.state_inputs
        if info.name not in known
    }


def _empty(info: TensorInfo, sizes: dict[Any, int]) -> Any:
    """Return zeros.

    Raises:
        GenerationError: If the machine does not have the memory. Allocating more than it has may
            succeed, and end the process when the pages are written to.
    """
    shape = [dim if isinstance(dim, int) else sizes.get(dim, 0) for dim in info.dims]
    size = math.prod(shape) * np.dtype(info.numpy_dtype).itemsize
    memory = _memory()
    if size > memory:
        raise GenerationError(
            f"the cache {info.name} {shape} needs {size_text(size)}, and the machine has "
            f"{size_text(memory)}: choose a smaller max_new_tokens or batch, or export it again"
        )
    return np.zeros(shape, info.numpy_dtype)


def _memory() -> int:
    """Return the size of the machine's memory in bytes."""
    if not hasattr(os, "sysconf"):  # on Windows, where an allocation beyond the memory fails
        return sys.maxsize
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _check_length(session: Session, prompt: Prompt, settings: Settings) -> None:
    """Refuse a text that does not fit into a cache of fixed length."""
    if all(info.name != "cache_position" for info in session.inputs):
        return
    # Keys and values have four axes, the third of which is the length.
    lengths = [info.dims[2] for info in session.state_inputs if len(info.dims) == 4]
    capacity = min((size for size in lengths if isinstance(size, int)), default=None)
    # The last token is returned, but not read.
    needed = prompt.ids.shape[1] + settings.max_new_tokens - 1
    if capacity is not None and needed > capacity:
        raise GenerationError(
            f"the prompt of {prompt.ids.shape[1]} tokens and {settings.max_new_tokens} new ones "
            f"need a cache of {needed}, and that of the model has {capacity}"
        )
