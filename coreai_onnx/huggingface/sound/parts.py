"""Which models make sound in steps: their parts by file, and their folders in sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from coreai_onnx.huggingface.encoder_decoders import DecoderPart, EncoderPart
from coreai_onnx.huggingface.media.model_part import ModelPart
from coreai_onnx.huggingface.sound.music import (
    CODES_FILE,
    TEXT_FILE,
    CodesDecoder,
    MusicModel,
    music_parts,
)
from coreai_onnx.huggingface.sound.speech import (
    VOCODER_CONFIG,
    VOCODER_FILE,
    SpectrumDecoder,
    SpeechModel,
    TextEncoder,
    vocoder_part,
)
from coreai_onnx.huggingface.sources import LoadedModel
from coreai_onnx.model.files.program_files import ENCODER_FILE, MERGED_FILE


@dataclass(frozen=True)
class SoundParts:
    """The parts of a model that makes sound in steps.

    Attributes:
        encoder: The encoder.
        decoder: The decoder.
        encoder_file: The file of the encoder.
        beside: Further parts by file.
        files: Contents of JSON files by name.
    """

    encoder: EncoderPart
    decoder: DecoderPart
    encoder_file: str
    beside: Mapping[str, ModelPart]
    files: Mapping[str, Any]


def _speech(loaded: LoadedModel) -> SoundParts:
    # First: a missing vocoder is found before the model runs.
    beside = {VOCODER_FILE: vocoder_part(loaded)}
    encoder = TextEncoder(loaded.model)
    files = {VOCODER_CONFIG: loaded.model.vocoder.config.to_dict()}
    return SoundParts(encoder, SpectrumDecoder(loaded.model, encoder), ENCODER_FILE, beside, files)


def _music(loaded: LoadedModel) -> SoundParts:
    model = loaded.model
    encoder = EncoderPart(model)
    return SoundParts(encoder, CodesDecoder(model, encoder), TEXT_FILE, music_parts(model), {})


_PARTS: Mapping[str, Callable[[LoadedModel], SoundParts]] = MappingProxyType(
    {"speecht5": _speech, "musicgen": _music}
)
SOUND_MODELS: Mapping[str, tuple[type, tuple[str, ...]]] = MappingProxyType(
    {
        VOCODER_FILE: (SpeechModel, (ENCODER_FILE, MERGED_FILE, VOCODER_FILE)),
        CODES_FILE: (MusicModel, (TEXT_FILE, MERGED_FILE, CODES_FILE)),
    }
)
"""The methods of a model and the files of its sessions, by the file that its folder has alone."""


def sound_parts(loaded: LoadedModel) -> SoundParts | None:
    """Return the parts of a model that makes sound in steps; None for others."""
    make = _PARTS.get(loaded.model.config.model_type)
    return make(loaded) if loaded.task.name == "text-to-audio" and make else None
