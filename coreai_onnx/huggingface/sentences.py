"""Sentence embeddings, with the pooling of a folder of sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.heads import Head
from coreai_onnx.huggingface.tasks import Task

MODULES = "modules.json"
_CLASSES = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True)
class Pooling:
    """How the embeddings of tokens become that of a sentence.

    Attributes:
        mode: ``"mean"`` of the tokens that are not padding, or that of the first token, ``"cls"``.
        normalizes: Whether the embedding gets the length 1.
    """

    mode: Literal["mean", "cls"] = "mean"
    normalizes: bool = False


def pooling_of(folder: Path | None) -> Pooling:
    """Read the pooling of a folder; without ``modules.json`` it is the mean.

    Args:
        folder: The folder; None for a model object.

    Raises:
        ModelSourceError: If a file is broken, or the folder has another module or pooling.
    """
    if folder is None or not (folder / MODULES).is_file():
        return Pooling()
    with failures_as(ModelSourceError, f"cannot read {folder / MODULES}"):
        # Versions of sentence-transformers have their classes in different packages.
        modules = {m["type"].rpartition(".")[2]: m for m in _read(folder / MODULES)}
        place = folder / modules["Pooling"]["path"] / "config.json"
        chosen = {name for name, is_on in _read(place).items() if is_on is True}
    # A Dense module has weights of its own, which would be left out without an error.
    if strangers := sorted(set(modules) - set(_CLASSES)):
        raise ModelSourceError(f"{folder / MODULES}: the module {strangers[0]} is not supported")
    modes = {name.removeprefix("pooling_mode_") for name in chosen if "pooling_mode" in name}
    normalizes = "Normalize" in modules
    if modes == {"mean_tokens"}:
        return Pooling("mean", normalizes)
    if modes == {"cls_token"}:
        return Pooling("cls", normalizes)
    raise ModelSourceError(f"{place}: the pooling {sorted(modes)} is not supported")


class SentenceHead(Head):
    """A text model that returns the embeddings of tokens and of sentences."""

    def __init__(self, model: torch.nn.Module, task: Task, pooling: Pooling) -> None:
        """Pool the last hidden state of a model; see `Head`."""
        # The constructor of `Head` calls `_result` already.
        self._pooling = pooling
        super().__init__(model, task)

    def _result(self, inputs: Sequence[torch.Tensor]) -> Any:
        tokens = super()._result(inputs)["last_hidden_state"]
        mask = inputs[self.input_names.index("attention_mask")][..., None].to(tokens.dtype)
        if self._pooling.mode == "cls":
            sentence = tokens[:, 0]
        else:  # sentence-transformers divides by at least 1e-9
            sentence = (tokens * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        if self._pooling.normalizes:
            sentence = torch.nn.functional.normalize(sentence, dim=1)
        return {"token_embeddings": tokens, "sentence_embedding": sentence}


def _read(file: Path) -> Any:
    return json.loads(file.read_text())
