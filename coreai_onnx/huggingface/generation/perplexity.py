"""Perplexity: how well a decoder predicts a text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface.generation.decoding import logits_of
from coreai_onnx.huggingface.generation.generating import Model, language_model
from coreai_onnx.huggingface.generation.prompts import read_prompt
from coreai_onnx.targets.providers import Choice

_LONGEST_WINDOW = 1024
"""Tokens in one call by default, at most: the logits of a window are in memory."""


def perplexity(
    model: Model,
    text: Any,
    *,
    window: int | None = None,
    stride: int | None = None,
    kernels: bool | None = None,
    provider: Choice | None = None,
) -> float:
    """Return the perplexity of a text.

    It is ``exp(mean(-log p(token | tokens before it)))``, over all tokens but the first. A long
    text is read in windows that overlap; a token is predicted once, from those before it in the
    first window that has it (the page *Perplexity of fixed-length models* of transformers).

    ```python
    coreai_onnx.perplexity("my_llama_onnx", Path("held_out.txt").read_text())
    ```

    Args:
        model: As for `generate`; a folder is opened at each call.
        text: Text, or token ids as a list, array or tensor of one axis.
        window: Number of tokens in one call; by default the length of text that the model knows
            (``max_position_embeddings``), and at most 1024.
        stride: How many tokens further each window begins; by default half a window. With a whole
            window, the first token of each window is not predicted. The smaller the stride, the
            more tokens before each predicted one, and the longer it takes.
        kernels: As for `session`, of a folder or a program.
        provider: As for `session`, of a folder or a program.

    Returns:
        The perplexity, 1 or more; infinity beyond the range of a float.

    Raises:
        GenerationError: If the model is not a decoder, the text has fewer than two tokens or needs
            a tokenizer, or the window or the stride is out of range.
        SessionError: If the model cannot be opened or run.
    """
    decoder = language_model(model, provider, kernels=kernels)
    if decoder.encoder is not None:
        raise GenerationError("the perplexity of a text needs a decoder; the model has an encoder")
    prompt = read_prompt(text, decoder.tokenizer)
    ids = prompt.ids[0]
    if not prompt.is_single or len(ids) < 2:
        raise GenerationError(
            f"perplexity is that of one text of two tokens or more, not {list(prompt.ids.shape)}"
        )
    if window is None:
        window = min(decoder.context or _LONGEST_WINDOW, _LONGEST_WINDOW)
    if stride is None:
        stride = max(window // 2, 1)
    loss, count = 0.0, 0
    for start, end, new in _windows(len(ids), window, stride):
        # One call for each window: a batch of them would multiply the logits in memory.
        part = ids[start:end]
        losses = torch.nn.functional.cross_entropy(
            logits_of(decoder.session, part[None])[0, :-1], part[1:], reduction="none"
        )
        # Tokens before are predicted in an earlier window already.
        loss += float(losses[-new:].double().sum())
        count += new
    try:
        return math.exp(loss / count)
    # ``math.exp`` raises it from 710 on.
    except OverflowError:
        return math.inf


def _windows(length: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield the start and end of each window, and how many of its last tokens are predicted.

    Raises:
        GenerationError: If the window or the stride is out of range.
    """
    if not 1 <= stride <= window or window < 2:
        raise GenerationError(
            f"window={window} and stride={stride}: a window has two tokens or more, and begins at "
            "least one token, and at most a whole window, after the one before"
        )
    # The first token has nothing before it to be predicted from.
    read = 1
    for start in range(0, length - 1, stride):
        end = min(start + window, length)
        yield start, end, min(end - read, end - start - 1)
        read = end
        # A further window would hold no new tokens.
        if end == length:
            return
