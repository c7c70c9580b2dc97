"""Models whose encoder reads a text with pictures, and whose decoder writes another: Florence-2."""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_outputs import Seq2SeqLMOutput

from coreai_onnx.huggingface.media.decoder import EMBEDS


class EncodedTextModel(torch.nn.Module):
    """The text part of a model with pictures, whose encoder and decoder take embeddings.

    Attributes:
        config: The configuration of the text part.
        main_input_name: ``inputs_embeds``.
    """

    main_input_name = EMBEDS

    def __init__(self, model: Any) -> None:
        """Take the parts of a ``Florence2ForConditionalGeneration``."""
        super().__init__()
        self.language, self.head = model.base_model.language_model, model.lm_head
        self.config = model.config.text_config

    def get_encoder(self) -> Any:
        """Return the encoder."""
        return self.language.get_encoder()

    def forward(
        self,
        encoder_outputs: Any,
        past_key_values: Any,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        **options: Any,
    ) -> Seq2SeqLMOutput:
        """Return the result of the decoder with its head."""
        result = self.language.get_decoder()(
            input_ids=decoder_input_ids,
            inputs_embeds=decoder_inputs_embeds,
            encoder_hidden_states=encoder_outputs[0],
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            return_dict=True,
            **options,
        )
        logits = self.head(result.last_hidden_state)
        return Seq2SeqLMOutput(logits=logits, past_key_values=result.past_key_values)
