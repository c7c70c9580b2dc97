"""The files of a model of pictures or sound and text, by the names that transformers.js has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.modeling_outputs import Seq2SeqLMOutput

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.media.decoder import EMBEDS, EmbeddedDecoder, embedding_part
from coreai_onnx.huggingface.media.encoders import DEEPSTACK, MediaEncoder, method_name
from coreai_onnx.huggingface.media.extensions import LAYER, extension_parts
from coreai_onnx.huggingface.media.prefixes import PrefixedModel, has_prefix
from coreai_onnx.model.files.program_files import EMBEDDING_FILE, MEDIA_FILES, MERGED_FILE

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


MEDIA_CLASSES = ("AutoModelForImageTextToText", "AutoModelForMultimodalLM")
"""The classes of transformers whose models are exported so."""


def media_parts(model: Any) -> dict[str, Any]:
    """Return the parts of a model by the names of their files, the decoder last.

    The encoder of text and the decoder of a model that has both are not among them.

    Raises:
        ModelSourceError: If the model has no encoder beside its decoder, or one of another form.
    """
    if hasattr(model.base_model, LAYER):
        decoder = {EMBEDDING_FILE: embedding_part(model), MERGED_FILE: EmbeddedDecoder(model)}
        return extension_parts(model) | decoder
    if has_prefix(model):
        model = PrefixedModel(model)
    # transformers returns the model itself where it knows no such encoder.
    by_modality = {
        modality: encoder
        for modality in MEDIA_FILES
        if (encoder := model.get_encoder(modality=modality)) not in (None, model)
    }
    encodes_text = model.config.is_encoder_decoder
    has_decoder = encodes_text or model.get_decoder() not in (None, model, model.base_model)
    if not by_modality or not has_decoder:
        raise ModelSourceError(
            f"{type(model).__name__} is not exported with its pictures or sound: transformers "
            "does not tell its encoder from its decoder"
        )
    encoders = {modality: MediaEncoder(model, modality) for modality in by_modality}
    layers = 0
    for encoder in encoders.values():
        if DEEPSTACK in encoder.output_names:
            layers = len(encoder(*encoder.example(model.dtype))[1])
    parts: dict[str, Any] = {MEDIA_FILES[name]: part for name, part in encoders.items()}
    parts |= {EMBEDDING_FILE: embedding_part(model)}
    return parts if encodes_text else parts | {MERGED_FILE: EmbeddedDecoder(model, layers)}


def encodes_prompts(model: Any) -> bool:
    """Return whether an encoder reads the text or the picture, and a decoder writes another."""
    return bool(model.config.is_encoder_decoder or model.config.model_type == CAPTIONS)


def encoder_decoder_of(model: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return an encoder with its decoder, the parts beside them, and contents of JSON files."""
    if model.config.model_type == CAPTIONS:
        captions = CaptionModel(model)
        return captions, {}, {GENERATION_CONFIG: captions.settings()}
    if hasattr(model, method_name("image")):
        return EncodedTextModel(model), media_parts(model), {}
    return model, {}, {}
