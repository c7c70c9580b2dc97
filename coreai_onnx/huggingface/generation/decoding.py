"""Steps of a decoder in a session: tokens in, logits of the next token out."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch
from transformers import Cache

from coreai_onnx.errors import GenerationError
from coreai_onnx.messages import size_text
from coreai_onnx.model.contract import (
    BLOCK_TABLE,
    CACHE_LENGTHS,
    ENCODED,
    SOURCE_LENGTHS,
    SOURCE_TABLE,
    STATE_SLOTS,
)
from coreai_onnx.model.files.mapped_tensors import memory_bytes
from coreai_onnx.model.interface import CAPACITY, TensorInfo
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.tensors.outputs import Array

_STATE = "encoder_hidden_states"
_ENCODED = {_STATE, "encoder_attention_mask", "use_cache_branch"}
ATTENTIONS = "cross_attentions."
_KEYS_AND_VALUES = "past_key_values."
_EMBEDDED = {"inputs_embeds", "token_type_ids", "deepstack_features"}
_TOKENS = ("input_ids", "inputs_embeds")
_ROWS = (_STATE, *_TOKENS)
"""Inputs that have a row for each sequence."""
# numpy knows bfloat16 as an extension, of kind V.
_SAME_KINDS = frozenset({("f", "f"), ("f", "V"), ("i", "i")})
_INPUTS = {
    *("input_ids", "attention_mask", "position_ids", "cache_position"),
    *(BLOCK_TABLE, CACHE_LENGTHS, STATE_SLOTS, *_ENCODED, *_EMBEDDED),
    *(SOURCE_TABLE, SOURCE_LENGTHS),
}


class Decoding(Cache):
    """One batch of sequences in a stream of a session, and the cache of its decoder.

    The session is that of an exported decoder (``input_ids``, ``attention_mask``, ``position_ids``
    and states), of a decoder with a static cache (``input_ids``, ``cache_position`` and states), or
    of a decoder without a cache, which reads all tokens in every step. The states of the session do
    not change.

    As a cache of transformers it can be reordered and cropped, for beams and candidates.

    Attributes:
        ids: The tokens so far, int64 ``[batch, length]``.
        fixed: Inputs that are the same in every step: the result of an encoder.
        attentions: The attention to it of the tokens that were read last, by layer, if the file has
            these outputs.
    """

    def __init__(self, session: Session) -> None:
        """Start a stream.

        Raises:
            GenerationError: If the model is not a decoder with these inputs.
        """
        super().__init__(layers=[])  # the tensors are in the stream
        check_decoder(session)
        if any(info.name == CACHE_LENGTHS for info in session.inputs):
            raise GenerationError(
                "the decoder has a paged cache, for many requests at once: use "
                'LanguageModel.open(folder).engine(), or export it with cache="growing"'
            )
        self.ids = torch.zeros(0, 0, dtype=torch.int64)
        self.fixed: dict[str, Any] = {}
        self.attentions: tuple[torch.Tensor, ...] = ()
        self._attentions = [x.name for x in session.outputs if x.name.startswith(ATTENTIONS)]
        self._session, self._stream = session, session.stream()
        infos = (*session.inputs, *session.optional_inputs)
        self._infos = {info.name: info for info in infos}
        self._mask = self.ids
        self._read = self._capacity = 0
        self._limit = _limit(session)
        self._first_states: dict[str, Any] = {}

    def extend(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> None:
        """Append tokens to each sequence.

        Args:
            tokens: The tokens, int64 ``[batch, count]``.
            mask: 1 for tokens and 0 for padding, of the whole sequences; None if the new tokens
                have no padding.

        Raises:
            GenerationError: If there is padding, and the model has no mask for it.
        """
        # Padding without a mask would be read as text.
        if mask is not None and "attention_mask" not in self._infos and not bool(mask.all()):
            raise GenerationError(
                "the prompts have different lengths, and the model has no attention_mask: "
                "give one prompt at a time"
            )
        is_first = not self.ids.numel()
        self.ids = tokens if is_first else torch.cat([self.ids, tokens], dim=1)
        if mask is None:
            ones = torch.ones_like(tokens)
            mask = ones if is_first else torch.cat([self._mask, ones], dim=1)
        self._mask = mask

    def logits(self) -> torch.Tensor:
        """Read the unread tokens and return the last logits, float32 ``[batch, vocabulary]``."""
        return self.read(1)[:, -1]

    def read(self, count: int) -> torch.Tensor:
        """Read the unread tokens and return logits, float32 ``[batch, tokens, vocabulary]``.

        Args:
            count: How many of the last tokens to return logits of, if the model has a choice; 0 for
                all of them.
        """
        outputs = self._stream.run(**self.feeds(count))
        # The stream holds the states from now on; the empty ones start it only.
        self._first_states, self._read = {}, self.ids.shape[1]
        # Files of others may name it in another way; logits come first in all of them.
        self.attentions = tuple(wide_tensor(outputs[name]) for name in self._attentions)
        logits = outputs["logits"] if "logits" in outputs.names else outputs[0]
        return torch.from_numpy(np.asarray(logits, np.float32))

    def feeds(self, count: int) -> dict[str, Any]:
        """Return the inputs of the next step; the states of the first one are empty.

        Args:
            count: As for `read`.
        """
        self.reserve(self.ids.shape[1])
        # Without a cache, every step reads all tokens.
        start = self._read if self._session.states else 0
        # Calls, because a model takes half of them, and each tensor costs a few microseconds.
        feeds: dict[str, Callable[[], Any]] = {
            "input_ids": lambda: self.ids[:, start:],
            "attention_mask": lambda: self._mask,
            # Prompts are padded on the left: positions count from the first token; padding has 0.
            "position_ids": lambda: (self._mask.cumsum(1) - 1).clamp(min=0)[:, start:],
            "cache_position": lambda: torch.arange(start, self.ids.shape[1]),
            "num_logits_to_keep": lambda: np.array(count),
            "use_cache_branch": lambda: torch.tensor([start > 0]),
        }
        inputs = {name: value() for name, value in feeds.items() if name in self._infos}
        return inputs | self.fixed | self._first_states

    def fix(self, values: Mapping[str, Any]) -> None:
        """Feed tensors in each step, those that are inputs of the model."""
        infos = self._infos
        self.fixed = {name: as_input(x, infos[name]) for name, x in values.items() if name in infos}

    def reserve(self, length: int) -> None:
        """Provide room for a number of tokens in a cache of a capacity.

        Raises:
            GenerationError: If the cache of the model has a fixed capacity that is smaller, or the
                machine does not have the memory.
        """
        if length > self._limit:
            raise GenerationError(
                f"the sequence needs a cache of {length} tokens, and that of the model has "
                f"{self._limit}: choose a shorter prompt or a smaller max_new_tokens"
            )
        if self._read == 0:
            self._capacity = max(length, self._capacity)
            if self.ids.numel():
                # MusicGen has several rows of tokens for each sequence.
                rows = self.fixed.get(_STATE, self.ids)
                self._first_states = empty_states(self._session, len(rows), self._capacity)
        elif length > self._capacity:
            # Twice as much: growing by one token would copy the cache in every step.
            self._capacity = max(length, 2 * self._capacity)
            self._change_states(lambda info, x: _grown(info, x, self._capacity))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens that the cache holds."""
        del layer_idx
        return self._read

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return the number of tokens after a call, and the place of the first one."""
        del layer_idx
        return self._read + query_length, 0

    @property
    def is_initialized(self) -> bool:
        """Whether a call has filled the cache."""
        return self._read > 0

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Continue from other sequences of the batch, one for each row, int64 ``[batch]``."""
        if torch.equal(beam_idx, torch.arange(len(self.ids))):
            return
        self.ids, self._mask = self.ids[beam_idx], self._mask[beam_idx]
        self._change_states(lambda _, x: x[beam_idx.numpy()])

    batch_select_indices = reorder_cache

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens.

        Args:
            tokens_to_remove: Minus their number; a positive number is that of the tokens to keep,
                as in transformers 5.0.
        """
        length = tokens_to_remove if tokens_to_remove > 0 else self._read + tokens_to_remove
        if length >= self._read:
            return
        self.ids, self._mask, self._read = self.ids[:, :length], self._mask[:, :length], length
        self._change_states(lambda info, x: x[:, :, :length] if _grows(info) else x)

    def _change_states(self, change: Callable[[TensorInfo, Any], Any]) -> None:
        infos = {info.name: info for info in self._session.state_inputs}
        states = self._stream.state
        self._stream.state = {name: change(infos[name], x) for name, x in states.items()}

    def close(self) -> None:
        """Release the states."""
        self._stream.close()


def logits_of(session: Session, ids: torch.Tensor) -> torch.Tensor:
    """Return the logits after each token, float32 ``[batch, length, vocabulary]``.

    Args:
        session: The session of the decoder.
        ids: The tokens, int64 ``[batch, length]``.

    Raises:
        GenerationError: If the model is not a decoder that returns them, or there are more tokens
            than its cache holds.
    """
    decoding = Decoding(session)
    decoding.extend(ids)
    try:
        logits = decoding.read(0)
    finally:
        decoding.close()
    if logits.shape[:2] != ids.shape:
        raise GenerationError(
            f"the model returns logits {list(logits.shape)} for {list(ids.shape)} tokens; "
            "the logits after each token are needed"
        )
    return logits


def check_decoder(session: Session) -> None:
    """Check that a model is a decoder.

    Raises:
        GenerationError: If it takes or returns something else.
    """
    names = {info.name for info in session.inputs if not info.name.startswith(ENCODED)}
    first = session.outputs[0] if session.outputs else None
    rank = -1 if first is None else len(first.dims)
    if names.isdisjoint(_TOKENS) or names - _INPUTS or rank != 3:
        raise GenerationError(
            "the model is not a decoder: it takes input_ids, attention_mask and position_ids, or "
            f"input_ids and cache_position, and returns logits [batch, sequence, vocabulary]\n"
            f"{session!r}\n  export it with coreai_onnx.export_model"
        )


def empty_states(session: Session, batch: int, capacity: int) -> dict[str, Any]:
    """Return an empty value for each state that has no initial value in the file.

    The length of keys and values is the capacity where it is fixed, and 0 otherwise.
    """
    initial = session.stream().state
    # The batch has the name that the exporter gave it; other dims of a state are empty.
    rows = next(x for name in _ROWS for x in session.inputs if x.name == name)
    return {
        info.name: empty(info, {rows.dims[0]: batch, CAPACITY: capacity})
        for info in session.state_inputs
        if info.name not in initial
    }


def shape_of(info: TensorInfo, sizes: dict[Any, int]) -> tuple[int, ...]:
    """Return the shape of a state, with sizes of its dims by name; others are 0.

    Raises:
        GenerationError: If the machine does not have the memory. Allocating more than it has may
            succeed, and end the process when the pages are written to.
    """
    shape = tuple(dim if isinstance(dim, int) else sizes.get(dim, 0) for dim in info.dims)
    size = math.prod(shape) * np.dtype(info.numpy_dtype).itemsize
    memory = memory_bytes()
    if size > memory:
        raise GenerationError(
            f"the cache {info.name} {list(shape)} needs {size_text(size)}, and the machine has "
            f"{size_text(memory)}: choose a smaller max_new_tokens or batch, or export it again"
        )
    return shape


def empty(info: TensorInfo, sizes: dict[Any, int]) -> Any:
    """Return zeros for a state; see `shape_of`."""
    return np.zeros(shape_of(info, sizes), info.numpy_dtype)


def _limit(session: Session) -> int:
    """Return the number of tokens that a cache of fixed capacity holds; a large one for others."""
    if all(info.name != "cache_position" for info in session.inputs):
        return sys.maxsize
    # Keys and values have four axes, the third of which is the length.
    lengths = [info.dims[2] for info in session.state_inputs if len(info.dims) == 4]
    return min((size for size in lengths if isinstance(size, int)), default=sys.maxsize)


def is_rewindable(session: Session) -> bool:
    """Return whether tokens can be removed from the cache of a decoder.

    A recurrent state is that after all tokens; keys and values are those of each.
    """
    is_static = any(info.name == "cache_position" for info in session.inputs)
    return is_static or all(name.startswith(_KEYS_AND_VALUES) for name in session.states)


def _grows(info: TensorInfo) -> bool:
    """Return whether each token adds to a state: those of an encoder's result stay."""
    is_own = info.name.startswith(_KEYS_AND_VALUES) and ".encoder." not in info.name
    return is_own and not (isinstance(info.dims[2], int) or info.dims[2] == CAPACITY)


def _grown(info: TensorInfo, state: Any, capacity: int) -> Any:
    if CAPACITY not in info.dims:
        return state
    places = [(0, capacity - state.shape[2] if dim == CAPACITY else 0) for dim in info.dims]
    return np.pad(state, places)


def as_input(x: Any, info: TensorInfo) -> Array:
    """Return floats as the floats, and integers as the integers that an input has."""
    dtype, array = np.dtype(info.numpy_dtype), np.asarray(x)
    is_same_kind = (array.dtype.kind, dtype.kind) in _SAME_KINDS
    return array.astype(dtype, copy=False) if is_same_kind else array


def wide_tensor(array: Array) -> torch.Tensor:
    """Return an array as a tensor; bfloat16, which torch does not read from numpy, as float32."""
    is_bfloat16 = array.dtype == ml_dtypes.bfloat16
    return torch.from_numpy(array.astype(np.float32) if is_bfloat16 else np.asarray(array))
