"""Prompts: text, token ids or spectrograms, one or several of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from coreai_onnx.errors import GenerationError, failures_as

_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")


@dataclass(frozen=True)
class Prompt:
    """The prompts of one batch, padded to one length.

    Attributes:
        ids: Tokens, int64 ``[batch, length]``, or spectrograms ``[batch, bins, frames]``.
        mask: 1 for tokens and 0 for padding, int64 ``[batch, length]``; None for spectrograms.
        is_text: Whether the prompts were text.
        is_single: Whether there was one prompt, not a batch.
    """

    ids: torch.Tensor
    mask: torch.Tensor | None
    is_text: bool
    is_single: bool


def read_prompt(
    prompt: Any,
    tokenizer: Any,
    *,
    mask: Any = None,
    pad_id: int = 0,
    side: Literal["left", "right"] = "left",
) -> Prompt:
    """Return a prompt as token ids.

    Args:
        prompt: Text, a list of texts, token ids, or a list of lists of token ids; ids may also be a
            tensor or array of one or two axes.
        tokenizer: The tokenizer of transformers, or None.
        mask: 1 for tokens and 0 for padding, if the ids are padded already.
        pad_id: The token to pad with.
        side: Where shorter prompts are padded: on the left for a decoder, which continues on the
            right, and on the right for an encoder.

    Raises:
        GenerationError: If it is none of these, is empty, or is text without a tokenizer.
    """
    texts = [prompt] if isinstance(prompt, str) else prompt
    is_text = isinstance(texts, Sequence) and bool(texts) and isinstance(texts[0], str)
    rows = _encoded(texts, tokenizer) if is_text else _rows(prompt)
    # Without a token, there is nothing to compute the next one from.
    if not rows or not all(rows):
        raise GenerationError("a prompt is empty; give at least one token or character of each")
    ids, own_mask = _padded(rows, pad_id, side)
    if mask is not None:
        own_mask = _given_mask(mask, ids.shape)
    single = isinstance(prompt, str) or (not is_text and np.ndim(_listed(prompt[0])) == 0)
    return Prompt(ids, own_mask, is_text, single)


def _encoded(texts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    if tokenizer is None:
        raise GenerationError(
            "the prompt is text, and there is no tokenizer: give token ids, or the folder that "
            "export_model wrote with a tokenizer"
        )
    # One by one: tokenizers without a padding token refuse to pad a list.
    return [list(map(int, tokenizer(text)["input_ids"])) for text in texts]


def _rows(prompt: Any) -> list[list[int]]:
    """Return token ids as lists of numbers, one for each sequence."""
    values = _listed(prompt)
    if isinstance(values, Sequence) and not isinstance(values, str):
        # A list of tensors or arrays is admitted too.
        values = [_listed(row) for row in values]
    if isinstance(values, Sequence) and values and not isinstance(values[0], Sequence):
        values = [values]
    rows = [list(row) for row in values] if isinstance(values, Sequence) else []
    whole = all(isinstance(token, int | np.integer) for row in rows for token in row)
    if not rows or not whole or isinstance(values, str):
        raise GenerationError(
            f"a prompt is text, token ids, or a list of them, not {type(prompt).__name__}: "
            f"{prompt!r:.80}"
        )
    return [[int(token) for token in row] for row in rows]


def _listed(values: Any) -> Any:
    return values.tolist() if isinstance(values, torch.Tensor | np.ndarray) else values


def _padded(rows: list[list[int]], pad_id: int, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    length = max(map(len, rows))
    ids = torch.full((len(rows), length), pad_id, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(rows):
        start = length - len(tokens) if side == "left" else 0
        ids[row, start : start + len(tokens)] = torch.tensor(tokens)
        mask[row, start : start + len(tokens)] = 1
    return ids, mask


def _given_mask(mask: Any, shape: torch.Size) -> torch.Tensor:
    values = torch.as_tensor(mask).to(torch.int64)
    values = values[None] if values.ndim == 1 else values
    if values.shape != shape:
        raise GenerationError(
            f"the attention mask is {list(values.shape)}, and the token ids are {list(shape)}"
        )
    return values


def read_features(prompt: Any) -> Prompt:
    """Return a spectrogram ``[batch, bins, frames]`` as a prompt without a mask.

    Raises:
        GenerationError: If the prompt is not a spectrogram.
    """
    if not isinstance(prompt, torch.Tensor | np.ndarray) or prompt.ndim not in (2, 3):
        raise GenerationError(
            "this is a speech model: the prompt is a spectrogram, a tensor "
            "[batch, bins, frames], as the feature extractor of transformers returns it"
        )
    features = torch.as_tensor(prompt)
    is_single = features.ndim == 2
    batch = features[None] if is_single else features
    return Prompt(batch, None, is_text=False, is_single=is_single)


def read_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a folder, or None if it has none.

    Raises:
        GenerationError: If it cannot be read.
    """
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        return None
    # transformers imports this class lazily, and slowly: folders without a tokenizer do without it.
    from transformers import AutoTokenizer

    with failures_as(GenerationError, f"cannot read the tokenizer in {folder}"):
        # A folder names everything that is needed: nothing may be downloaded.
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
