"""Models whose encoder reads a text with pictures, in sessions: Florence-2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutput

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface.generation.media_layers import run_session
from coreai_onnx.huggingface.generation.session_model import SessionModel
from coreai_onnx.huggingface.media.decoder import EMBEDS
from coreai_onnx.runtime.sessions.session import Session


class EncodedTextSessions(SessionModel):
    """A decoder, its encoder, and the embeddings of both, which features of pictures replace.

    Args:
        decoder: The session of the decoder.
        encoder: The session of the encoder.
        embeddings: The session of the embeddings.
        vision: The session of the encoder of pictures, or None.
        placeholder: The token that features replace.
        settings: The settings of ``generation_config``.
    """

    def __init__(
        self,
        decoder: Session,
        encoder: Session,
        embeddings: Session,
        vision: Session | None,
        placeholder: int,
        settings: Mapping[str, Any],
    ) -> None:
        """Take the sessions."""
        super().__init__(decoder, settings, encoder)
        self.main_input_name = "input_ids"
        self._embeddings, self._encodes, self._vision = embeddings, encoder, vision
        self._placeholder = placeholder

    def generate(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Generate, as ``generate`` of transformers does."""
        embeds = self._embed(input_ids)
        if pixel_values is not None and self._vision is not None:
            (features,) = run_session(self._vision, pixel_values=pixel_values)
            places = input_ids == self._placeholder
            if int(places.sum()) != features.shape[:-1].numel():
                raise GenerationError(
                    f"the prompt has {int(places.sum())} tokens {self._placeholder} of pictures, "
                    f"and the pictures have {features.shape[:-1].numel()} features"
                )
            embeds = embeds.masked_scatter(places[..., None], features)
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        (state,) = run_session(self._encodes, inputs_embeds=embeds, attention_mask=attention_mask)
        outputs = BaseModelOutput(last_hidden_state=state)
        return super().generate(encoder_outputs=outputs, attention_mask=attention_mask, **options)

    def further(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what the decoder reads beside the encoder's result: embeddings of new tokens."""
        return {EMBEDS: self._embed(input_ids)}

    def _embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        return run_session(self._embeddings, input_ids=input_ids)[0]
