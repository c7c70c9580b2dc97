"""Prompts with pictures or sound, which the processor of a folder reads."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from coreai_onnx.errors import GenerationError, failures_as
from coreai_onnx.huggingface.generation.prompts import Prompt, read_prompt
from coreai_onnx.huggingface.media.prefixes import has_prefix

MEDIA_OPTIONS = ("images", "audio")
"""The options of models of pictures and sound."""
_FILES = ("processor_config.json", "preprocessor_config.json")
_RATE = "sampling_rate"
_MODALITIES = {"images": "image", "audio": "audio"}


@dataclass(frozen=True)
class Media:
    """A model of pictures or sound that runs in sessions, and its processor.

    Attributes:
        model: The model of transformers.
        folder: The folder with the files of the processor.
        modalities: What it has encoders of: ``"image"``, ``"audio"``.
    """

    model: Any
    folder: Path
    modalities: frozenset[str]

    @functools.cached_property
    def processor(self) -> Any:
        """The processor.

        Raises:
            GenerationError: If there is none, or it cannot be read.
        """
        if not any((self.folder / name).is_file() for name in _FILES):
            raise GenerationError(
                f"{self.folder}: there is no {_FILES[0]}, which says how pictures and sound are "
                "read\n  copy the processor's files to the folder, or give the inputs that the "
                "processor of transformers returns: images=processor(...)"
            )
        from transformers import AutoProcessor

        with failures_as(GenerationError, f"cannot read the processor in {self.folder}"):
            return AutoProcessor.from_pretrained(self.folder, local_files_only=True)

    def read(self, prompt: Any, media: Mapping[str, Any]) -> tuple[Prompt, dict[str, Any]]:
        """Return a prompt, and the further inputs of the model.

        Args:
            prompt: Text or texts with placeholders, or token ids.
            media: ``images`` and ``audio``: pictures or sounds, or inputs that the processor has
                returned.

        Raises:
            GenerationError: If the model does not take them, the prompt has another number of
                placeholders, or the processor refuses them.
        """
        for name in media:
            if _MODALITIES[name] not in self.modalities:
                raise GenerationError(
                    f"the model takes no {name}: it has an encoder of "
                    f"{' and '.join(sorted(self.modalities))} only"
                )
        model = self.model
        if model.config.is_encoder_decoder and model.main_input_name == "pixel_values":
            return self._pictures(prompt, media["images"])
        if prompt is None and has_prefix(model):
            return self._captioned(media["images"])
        if "audio" in media and not _is_ready(media["audio"]):
            media = {**media, "audio": self._samples(media["audio"])}
        ready = {k: x for one in media.values() if _is_ready(one) for k, x in one.items()}
        if ready:
            return _of_inputs(prompt, ready)
        texts = [prompt] if isinstance(prompt, str) else prompt
        if not isinstance(texts, Sequence) or not texts or not isinstance(texts[0], str):
            raise GenerationError(
                "a prompt with pictures or sound is text, or token ids beside the inputs that the "
                "processor returned: images=processor(...)"
            )
        counts = {name: self._placeholders(name, texts, x) for name, x in media.items()}
        how: dict[str, Any] = {"return_tensors": "pt", "padding": True}
        if "audio" in media:
            how["sampling_rate"] = self._rate
        with failures_as(GenerationError, "the processor refuses the prompt"):
            inputs = dict(self.processor(text=list(texts), **media, **how))
        ids = inputs.pop("input_ids")
        for name, (token, count) in counts.items():
            number = getattr(self.processor, f"{_MODALITIES[name]}_token_id", None)
            # Some processors add the placeholders themselves.
            if number is not None and not bool((ids == number).any()):
                raise GenerationError(_mismatch(name, token, 0, count))
        mask = inputs.pop("attention_mask", None)
        return Prompt(ids, mask, is_text=True, is_single=isinstance(prompt, str)), inputs

    def _pictures(self, prompt: Any, images: Any) -> tuple[Prompt, dict[str, Any]]:
        """Return pictures as the prompt of an encoder, and what its decoder starts from."""
        pixels = self._pixels(images)
        asked = Prompt(pixels, None, prompt is None or isinstance(prompt, str), len(pixels) == 1)
        if not prompt:
            return asked, {}
        started = read_prompt(prompt, self.start_tokens if isinstance(prompt, str) else None)
        return asked, {"decoder_input_ids": started.ids.expand(len(pixels), -1)}

    def _captioned(self, images: Any) -> tuple[Prompt, dict[str, Any]]:
        """Return the token that a caption begins with, and the pictures before it."""
        pixels = self._pixels(images)
        ids = torch.full((len(pixels), 1), self.model.config.bos_token_id)
        return Prompt(ids, None, is_text=True, is_single=len(pixels) == 1), {"pixel_values": pixels}

    def _pixels(self, images: Any) -> torch.Tensor:
        """Return what the processor makes of pictures, or has made of them."""
        if not isinstance(images, Mapping):
            with failures_as(GenerationError, "the processor refuses the pictures"):
                images = self.processor(images=images, return_tensors="pt")
        with failures_as(GenerationError, "images must have the tensor pixel_values"):
            return torch.as_tensor(images["pixel_values"])

    @property
    def _rate(self) -> int:
        """The sampling rate of sound that the processor takes, in Hz."""
        names = ("feature_extractor", "audio_processor")
        readers = (getattr(self.processor, name, None) for name in names)
        return int(next(reader for reader in readers if reader is not None).sampling_rate)

    def _samples(self, audio: Any) -> list[Any]:
        """Return the samples of sounds.

        Raises:
            GenerationError: If the processor takes no sound beside a text, or another rate.
        """
        kind = type(self.processor)
        if "audio" not in inspect.signature(kind.__call__).parameters:
            raise GenerationError(
                f"{kind.__name__} reads sound by apply_chat_template only: give the inputs that it "
                "returns, audio=processor.apply_chat_template(...)"
            )
        samples = []
        for one in [audio] if _is_sound(audio) else audio:
            if _is_sound(one):
                if (rate := one[_RATE]) != self._rate:
                    raise GenerationError(
                        f"audio has a sampling rate of {rate} Hz, but the processor takes "
                        f"{self._rate} Hz: resample it first"
                    )
                samples.append(one["array"] if "array" in one else one["raw"])
            else:
                samples.append(one)
        return samples

    def start_tokens(self, text: str) -> Any:
        """Return the tokens that a decoder starts from, without those around a text."""
        return self.processor.tokenizer(text, add_special_tokens=False)

    def _placeholders(self, name: str, texts: Sequence[str], media: Any) -> tuple[str, int]:
        """Return the placeholder, and the number of pictures or sounds."""
        token = getattr(self.processor, f"{_MODALITIES[name]}_token", None)
        count = sum(1 for _ in _flat(media))
        places = 0 if token is None else sum(text.count(token) for text in texts)
        token = str(token)
        if places not in (0, count):
            raise GenerationError(_mismatch(name, token, places, count))
        return token, count


def _is_sound(media: Any) -> bool:
    """Return whether it is a sound with its rate, as datasets and pipelines have them."""
    return isinstance(media, Mapping) and _RATE in media


def _is_ready(media: Any) -> bool:
    """Return whether it is what a processor has returned."""
    return isinstance(media, Mapping) and not _is_sound(media)


def _mismatch(name: str, token: str, places: int, count: int) -> str:
    return f"the prompt has {places} placeholders {token}, and {name} has {count}"


def _flat(media: Any) -> Iterator[Any]:
    if isinstance(media, list | tuple):
        for one in media:
            yield from _flat(one)
    else:
        yield media


def _of_inputs(prompt: Any, inputs: dict[str, Any]) -> tuple[Prompt, dict[str, Any]]:
    """Return a prompt of token ids and inputs that the processor has returned."""
    ids = inputs.pop("input_ids", None)
    mask = inputs.pop("attention_mask", None)
    asked = read_prompt(ids if prompt is None else prompt, None, mask=mask)
    with failures_as(GenerationError, "images and audio must be tensors by name"):
        return asked, {name: torch.as_tensor(x) for name, x in inputs.items()}
