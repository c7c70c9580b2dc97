"""The encoder of a model with an encoder and a decoder: runs once for a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface.generation.prompts import Prompt, read_prompt
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.tensors.outputs import Array

_FEATURES = "input_features"


@dataclass(frozen=True)
class Encoded:
    """What the decoder reads in every step, and the tokens that it starts from.

    Attributes:
        feeds: ``encoder_hidden_states`` and, for text, ``encoder_attention_mask``.
        start: The first token of each sequence.
    """

    feeds: dict[str, Any]
    start: Prompt


@dataclass(frozen=True)
class Encoder:
    """An encoder in a session.

    Attributes:
        session: The session.
        start_id: The token that the decoder starts from.
    """

    session: Session
    start_id: int

    def encode(self, prompt: Any, tokenizer: Any, *, mask: Any, pad_id: int) -> Encoded:
        """Run the encoder.

        Args:
            prompt: As for `read_prompt`; for a spectrogram ``[batch, bins, frames]`` or
                ``[bins, frames]``.
            tokenizer: As for `read_prompt`.
            mask: As for `read_prompt`.
            pad_id: As for `read_prompt`.

        Raises:
            GenerationError: If the prompt is not of the kind that the encoder takes.
        """
        if self.session.inputs[0].name == _FEATURES:
            return self._encode_features(prompt)
        # An encoder numbers positions from the left: padding belongs on the right.
        asked = read_prompt(prompt, tokenizer, mask=mask, pad_id=pad_id, side="right")
        given = {"input_ids": asked.ids, "attention_mask": asked.mask}
        # Encoders of a fixed length take no mask.
        names = {info.name for info in self.session.inputs}
        outputs = self.session.run(**{name: x for name, x in given.items() if name in names})
        feeds = {"encoder_hidden_states": outputs[0], "encoder_attention_mask": asked.mask}
        return Encoded(
            feeds, self._start(len(asked.ids), is_text=asked.is_text, is_single=asked.is_single)
        )

    def _encode_features(self, prompt: Any) -> Encoded:
        features, single = read_features(prompt)
        outputs = self.session.run(features)
        feeds = {"encoder_hidden_states": outputs[0]}
        return Encoded(feeds, self._start(len(outputs[0]), is_text=False, is_single=single))

    def _start(self, batch: int, *, is_text: bool, is_single: bool) -> Prompt:
        ids = torch.full((batch, 1), self.start_id, dtype=torch.int64)
        return Prompt(ids, torch.ones_like(ids), is_text, is_single)


def read_features(prompt: Any) -> tuple[Array, bool]:
    """Return a spectrogram ``[batch, bins, frames]``, and whether it had no batch axis.

    Raises:
        GenerationError: If the prompt is not a spectrogram.
    """
    if not isinstance(prompt, torch.Tensor | np.ndarray) or prompt.ndim not in (2, 3):
        raise GenerationError(
            "this is a speech model: the prompt is a spectrogram, a tensor "
            "[batch, bins, frames], as the feature extractor of transformers returns it"
        )
    features: Array = prompt.numpy() if isinstance(prompt, torch.Tensor) else prompt
    return (features[None], True) if features.ndim == 2 else (features, False)
