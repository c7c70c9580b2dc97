"""The files of a model of pictures or sound and text, by the names that transformers.js has."""

from __future__ import annotations

from typing import Any

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.media.captions import CAPTIONS, GENERATION_CONFIG, CaptionModel
from coreai_onnx.huggingface.media.decoder import EmbeddedDecoder, embedding_part
from coreai_onnx.huggingface.media.encoded_texts import EncodedTextModel
from coreai_onnx.huggingface.media.encoders import DEEPSTACK, MediaEncoder, method_name
from coreai_onnx.huggingface.media.extensions import LAYER, extension_parts
from coreai_onnx.huggingface.media.prefixes import PrefixedModel, has_prefix
from coreai_onnx.model.files.program_files import EMBEDDING_FILE, MEDIA_FILES, MERGED_FILE

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
