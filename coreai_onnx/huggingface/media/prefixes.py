"""Models whose features of pictures precede the text, without placeholders: GIT."""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from coreai_onnx.huggingface.transformers_names import create_causal_mask


def has_prefix(model: Any) -> bool:
    """Return whether features of pictures precede the text."""
    return hasattr(model.base_model, "image_encoder")


class PrefixedModel(torch.nn.Module):
    """A ``GitForCausalLM`` with the interface of models that replace embeddings by features.

    Attributes:
        base_model: The model without its head.
        embeddings: The layer of embeddings with their positions.
    """

    def __init__(self, model: Any) -> None:
        """Take the parts of a model."""
        super().__init__()
        self.base_model, self.head = model.base_model, model.get_output_embeddings()
        self.config, self.dtype = model.config, model.dtype

    @property
    def embeddings(self) -> Any:
        """The embeddings of tokens with those of their positions."""
        return self.base_model.embeddings

    def get_input_embeddings(self) -> Any:
        """Return the embeddings of tokens."""
        return self.base_model.get_input_embeddings()

    def get_encoder(self, modality: str | None = None) -> Any:
        """Return the encoder of pictures; None for others."""
        return self.base_model.image_encoder if modality == "image" else None

    def get_decoder(self) -> Any:
        """Return the layers that read embeddings."""
        return self.base_model.encoder

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        logits_to_keep: Any = None,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """Return the logits; tokens of type 1 are features of a picture, which attend to all."""
        states = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if token_type_ids is None:
            token_type_ids = states.new_zeros(states.shape[:2], dtype=torch.int64)
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=states,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            block_sequence_ids=token_type_ids - 1,
        )
        result = self.get_decoder()(
            states, attention_mask=mask, past_key_values=past_key_values, **options
        )
        last = result.last_hidden_state
        logits = self.head(last if logits_to_keep is None else last[:, logits_to_keep])
        return CausalLMOutputWithPast(logits=logits, past_key_values=result.past_key_values)
