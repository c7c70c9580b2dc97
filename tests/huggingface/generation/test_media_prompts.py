"""Prompts with sound: what the processor reads, and what it is not given."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface.generation.media_prompts import Media
from tests.support.huggingface_folders import tokenizer


@pytest.fixture
def listener(tmp_path: Path) -> Media:
    """A model of sound with the processor of Qwen2-Audio."""
    words = tokenizer()
    words.add_special_tokens({"additional_special_tokens": ["<filler>", "<|AUDIO|>"]})
    transformers.Qwen2AudioProcessor(
        transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1), words
    ).save_pretrained(tmp_path)
    config = SimpleNamespace(is_encoder_decoder=False)
    return Media(SimpleNamespace(config=config), tmp_path, frozenset({"audio"}))


def test_sounds_of_several_lengths(listener: Media) -> None:
    random = np.random.default_rng(0)
    sounds = [random.standard_normal(size).astype(np.float32) for size in (9000, 5000)]
    text = "a <|AUDIO|> and <|AUDIO|>:"
    expected = dict(
        listener.processor(
            text=[text], audio=sounds, sampling_rate=16000, padding=True, return_tensors="pt"
        )
    )
    for audio in (sounds, [{"array": one, "sampling_rate": 16000} for one in sounds]):
        prompt, inputs = listener.read(text, {"audio": audio})
        inputs |= {"input_ids": prompt.ids, "attention_mask": prompt.mask}
        assert inputs.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(inputs[name], value, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("audio", "message"),
    [
        (
            {"raw": np.zeros(4000, np.float32), "sampling_rate": 8000},
            "rate of 8000 Hz, but the processor takes 16000 Hz: resample it first",
        ),
        ([np.zeros((3, 3, 3), np.float32)], "the processor refuses the prompt"),
    ],
)
def test_sounds_that_the_processor_does_not_take(audio: Any, message: str, listener: Media) -> None:
    with pytest.raises(GenerationError, match=message):
        listener.read("<|AUDIO|>", {"audio": audio})


def test_a_processor_without_sound_beside_text(listener: Media) -> None:
    class Templates:
        def __call__(self, text: str) -> None:
            """Read a text."""

    vars(listener)["processor"] = Templates()
    with pytest.raises(GenerationError, match="Templates reads sound by apply_chat_template only"):
        listener.read("a", {"audio": [np.zeros(9, np.float32)]})


def test_a_prompt_with_pictures_alone() -> None:
    model = SimpleNamespace(
        config=SimpleNamespace(is_encoder_decoder=False, bos_token_id=7),
        base_model=SimpleNamespace(image_encoder=None),
    )
    media = Media(model, Path(), frozenset({"image"}))
    pixels = torch.zeros(2, 3, 4, 4)
    prompt, inputs = media.read(None, {"images": {"pixel_values": pixels}})
    assert prompt.ids.tolist() == [[7], [7]]
    assert (prompt.is_text, prompt.is_single) == (True, False)
    assert list(inputs) == ["pixel_values"]
    with pytest.raises(GenerationError, match="images must have the tensor pixel_values"):
        media.read(None, {"images": {"pixels": pixels}})


def test_a_processor_with_an_audio_processor(listener: Media) -> None:
    extractor = listener.processor.feature_extractor
    kind = type("Reads", (), {"__call__": lambda self, text, audio: None})
    vars(listener)["processor"] = reader = kind()
    reader.audio_processor = extractor
    with pytest.raises(GenerationError, match="rate of 8000 Hz, but the processor takes 16000 Hz"):
        listener.read("a", {"audio": {"array": np.zeros(9), "sampling_rate": 8000}})
