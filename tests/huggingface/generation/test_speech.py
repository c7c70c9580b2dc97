"""Whisper's own generation in sessions: the tokens of transformers for the same settings."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import LanguageModel, stream
from coreai_onnx.huggingface.generation.speech import Speech
from tests.models.sequence_to_sequence import SEQUENCE_TO_SEQUENCE

SETTINGS: dict[str, Any] = {
    "decoder_start_token_id": 50,
    "bos_token_id": 51,
    "eos_token_id": 51,
    "pad_token_id": 51,
    "lang_to_id": {"<|en|>": 52, "<|de|>": 53},
    "task_to_id": {"translate": 54, "transcribe": 55},
    "no_timestamps_token_id": 60,
    "is_multilingual": True,
    "return_timestamps": False,
    "max_length": 40,
    "suppress_tokens": [3, 5],
    "begin_suppress_tokens": [7],
    "max_initial_timestamp_index": 4,
    "alignment_heads": [[0, 0], [0, 1]],
}
"""Timestamps are the tokens from 61 on."""
FRAMES = 40


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, LanguageModel]:
    """A Whisper of random weights, and what it is exported to."""
    (whisper,) = (one for one in SEQUENCE_TO_SEQUENCE if one.name == "whisper")
    model: Any = whisper.module()
    model.generation_config = transformers.GenerationConfig(**SETTINGS)
    folder = tmp_path_factory.mktemp("speech") / "folder"
    export_model(model, folder, include=["cross_attentions"])
    return model, LanguageModel.open(folder)


def spectrogram(batch: int, frames: int = FRAMES) -> torch.Tensor:
    return torch.randn(batch, 16, frames, generator=torch.Generator().manual_seed(batch + frames))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"return_timestamps": True},
        {"return_timestamps": True, "language": "de", "task": "translate"},
        {"language": "en"},
        {"max_new_tokens": 5, "repetition_penalty": 1.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("batch", [1, 3])
def test_the_tokens_of_transformers(
    exported: tuple[Any, LanguageModel], options: Any, batch: int
) -> None:
    model, whisper = exported
    features = spectrogram(batch)
    wanted = model.generate(features, **options)
    assert whisper.generate(features, **options).tolist() == wanted.tolist()
    assert whisper.generate(features.numpy(), **options).tolist() == wanted.tolist()


def test_long_audio_in_windows(exported: tuple[Any, LanguageModel]) -> None:
    model, whisper = exported
    features = spectrogram(1, 3 * FRAMES + 10)
    wanted = model.generate(features, return_timestamps=True)
    assert whisper.generate(features, return_timestamps=True).tolist() == wanted.tolist()
    first = model.generate(features[..., :FRAMES], return_timestamps=True)
    assert len(wanted[0]) > len(first[0])


def test_long_audio_of_different_lengths(exported: tuple[Any, LanguageModel]) -> None:
    model, whisper = exported
    features, mask = spectrogram(2, 3 * FRAMES), torch.ones(2, 3 * FRAMES, dtype=torch.int64)
    mask[1, FRAMES + 7 :] = 0
    options = {"return_timestamps": True, "attention_mask": mask}
    wanted = model.generate(features, **options)
    assert whisper.generate(features, **options).tolist() == wanted.tolist()


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("frames", [FRAMES, 3 * FRAMES])
def test_timestamps_of_words(exported: tuple[Any, LanguageModel], frames: int, beams: int) -> None:
    model, whisper = exported
    assert whisper.speech is not None
    features, mask = spectrogram(2, frames), torch.ones(2, frames, dtype=torch.int64)
    mask[:, frames - 7 :] = 0
    options = {
        "attention_mask": mask, "num_beams": beams, "return_timestamps": True,
        "return_token_timestamps": True, "return_segments": True,
    }  # fmt: skip
    wanted = model.generate(features, **options)
    result = whisper.speech.model.generate(features, **options)
    assert torch.equal(result["sequences"], wanted["sequences"])
    for segments, others in zip(result["segments"], wanted["segments"], strict=True):
        for segment, other in zip(segments, others, strict=True):
            assert torch.equal(segment["token_timestamps"], other["token_timestamps"])
    times = wanted["segments"][0][0]["token_timestamps"]
    assert len(times.unique()) > 1


def test_no_timestamps_of_words_without_attentions(exported: tuple[Any, LanguageModel]) -> None:
    whisper = exported[1].speech
    assert whisper is not None
    decoder = Namespace(outputs=[Namespace(name="logits")])
    model = type(whisper.model)(whisper.model.config, exported[1].encoder, decoder)
    with pytest.raises(GenerationError, match=r'include=\["cross_attentions"\]'):
        model.generate(spectrogram(1), return_token_timestamps=True)


def test_sampling_with_a_seed(exported: tuple[Any, LanguageModel]) -> None:
    model, whisper = exported
    features, options = spectrogram(1), {"temperature": 0.7, "top_k": 5}
    torch.manual_seed(3)
    wanted = model.generate(features, do_sample=True, **options)
    before = torch.random.get_rng_state()
    assert whisper.generate(features, **options, seed=3).tolist() == wanted.tolist()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_one_spectrogram_without_a_batch(exported: tuple[Any, LanguageModel]) -> None:
    model, whisper = exported
    features = spectrogram(1)
    assert whisper.generate(features[0]).tolist() == model.generate(features)[0].tolist()


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([5, 9], {}, "the prompt is a spectrogram"),
        (spectrogram(1), {"language": "xx"}, "Unsupported language"),
        (spectrogram(1), {"task": "sing"}, "sing"),
        (spectrogram(1, 3 * FRAMES), {}, "return_timestamps"),
        (spectrogram(1), {"beams": 3}, "no option 'beams'"),
    ],
)
def test_what_is_refused(
    exported: tuple[Any, LanguageModel], prompt: Any, options: Any, message: str
) -> None:
    with pytest.raises(GenerationError, match=message):
        exported[1].generate(prompt, **options)


def test_no_stream(exported: tuple[Any, LanguageModel]) -> None:
    with pytest.raises(GenerationError, match="use generate"):
        stream(exported[1], spectrogram(1))


def test_options_of_whisper_for_other_models(exported: tuple[Any, LanguageModel]) -> None:
    session = exported[1].session
    with pytest.raises(GenerationError, match="language is an option of Whisper"):
        LanguageModel(session).generate([5, 9], language="en")


def test_a_broken_configuration(tmp_path: Path, exported: tuple[Any, LanguageModel]) -> None:
    session = exported[1].session
    with pytest.raises(GenerationError, match="cannot read the configuration"):
        Speech(tmp_path / "nothing", session, session)
