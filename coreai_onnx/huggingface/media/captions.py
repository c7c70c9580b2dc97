"""BLIP, whose captioning is an encoder of pictures and a decoder of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

CAPTIONS, GENERATION_CONFIG = "blip", "generation_config.json"
"""The model type, and the file that says which tokens begin and end a caption."""


@dataclass(frozen=True)
class _Config:
    model_type: str
    encoder: Any


class CaptionModel(torch.nn.Module):
    """A model of captions with the interface of transformers' encoder-decoders.

    Attributes:
        config: The configuration, with that of the encoder.
        main_input_name: ``pixel_values``.
    """

    main_input_name = "pixel_values"

    def __init__(self, model: Any) -> None:
        """Take the parts of a ``BlipForConditionalGeneration``."""
        super().__init__()
        self.encoder, self.decoder = model.vision_model, model.text_decoder
        self.config = _Config(CAPTIONS, model.config.vision_config)
        self._text = model.config.text_config
        self._generation = model.generation_config.to_diff_dict()

    def get_encoder(self) -> torch.nn.Module:
        """Return the encoder."""
        return self.encoder  # type: ignore[no-any-return]  # a layer

    def settings(self) -> dict[str, Any]:
        """Return what transformers' ``generate`` of the model passes to that of its decoder."""
        result: dict[str, Any] = self._generation | {
            "decoder_start_token_id": self._text.bos_token_id,
            "eos_token_id": self._text.sep_token_id,
            "pad_token_id": self._text.pad_token_id,
        }
        return result

    def forward(
        self,
        decoder_input_ids: torch.Tensor,
        encoder_outputs: Any,
        past_key_values: Any,
        attention_mask: torch.Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Return the result of the decoder."""
        return self.decoder(
            input_ids=decoder_input_ids,
            encoder_hidden_states=encoder_outputs[0],
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            return_dict=True,
            **options,
        )
