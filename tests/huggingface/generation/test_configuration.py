"""The settings of exported folders: what is read, and hostile values of every setting."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers

from coreai_onnx.errors import CoreaiError, GenerationError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import LanguageModel, generating
from coreai_onnx.huggingface.generation.configuration import (
    CONFIG,
    GENERATION_CONFIG,
    KINDS,
    SPEECH_KINDS,
    Configuration,
)
from tests.huggingface.generation.test_speech import SETTINGS, spectrogram
from tests.models.sequence_to_sequence import SEQUENCE_TO_SEQUENCE
from tests.support.huggingface_folders import llama

HOSTILE: tuple[Any, ...] = (
    *("", "7", True, -1, -2, 0, 1, 2**31, 2**70, -(2**70), 0.0, 1.5, float("nan"), float("inf")),
    *([], [5], [2**70], ["a"], [None], [[1]], [True], {}, {"a": 1}, {"<|en|>": 2**70}),
)
SIZES = ("vocab_size", "d_model", "num_mel_bins", "max_source_positions", "encoder_layers")
"""Further settings of Whisper: a configuration of other sizes than the model."""
PROMPT = [[5, 9, 17], [8]]


def sequence_to_sequence(name: str) -> Any:
    (found,) = (one for one in SEQUENCE_TO_SEQUENCE if one.name == name)
    return found.module()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A decoder, an encoder with a decoder, and a Whisper."""
    place = tmp_path_factory.mktemp("folders")
    speech = sequence_to_sequence("whisper")
    speech.generation_config = transformers.GenerationConfig(**SETTINGS)
    models = {"llama": llama(), "t5": sequence_to_sequence("t5"), "whisper": speech}
    return {name: export_model(model, place / name).path for name, model in models.items()}


def written(folder: Path, file: str, **settings: Any) -> Path:
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**content, **settings}))
    return folder


def prompt_of(name: str) -> Any:
    return spectrogram(1) if name == "whisper" else PROMPT


@pytest.fixture(params=["llama", "t5", "whisper"])
def copied(
    request: pytest.FixtureRequest, folders: Mapping[str, Path], tmp_path: Path
) -> tuple[str, Path]:
    """Return the name and a copy of each folder."""
    shutil.copytree(folders[request.param], tmp_path / "folder")
    return request.param, tmp_path / "folder"


def attacks(name: str) -> Iterator[tuple[str, str, Any]]:
    """Yield a file, a setting and a value."""
    for value in HOSTILE:
        for setting in (*KINDS, *(SPEECH_KINDS if name == "whisper" else ())):
            yield GENERATION_CONFIG, setting, value
        for setting in SIZES if name == "whisper" else KINDS:
            yield CONFIG, setting, value


@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
def test_hostile_values_are_used_or_refused_by_name(
    copied: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each setting of each file, with each value: tokens, or an error of this package."""
    name, folder = copied
    # The model stays the same.
    monkeypatch.setattr(generating, "Session", functools.cache(generating.Session))
    before = {file: (folder / file).read_text() for file in (GENERATION_CONFIG, CONFIG)}
    refused, unclear = [], []
    for file, setting, value in attacks(name):
        written(folder, file, **{setting: value})
        message = refusal(folder, prompt_of(name))
        (folder / file).write_text(before[file])
        if message is not None:
            refused.append(setting)
            if message.count("\n") > 3 or (setting in KINDS and setting not in message):
                unclear.append(f"{file}: {setting}={value!r:.30}: {message}")
    assert not unclear
    assert len(refused) > 200
    assert set(refused) >= set(KINDS)


def refusal(folder: Path, prompt: Any) -> str | None:
    """Generate, and return the message of the error of this package; None if there are tokens."""
    try:
        tokens = LanguageModel.open(folder).generate(prompt, max_new_tokens=2)
    except CoreaiError as error:
        return str(error)
    assert len(tokens) == len(prompt)
    return None


@pytest.mark.parametrize("text", ["", "[1]", "{", '"x"', "[" * 100_000, "\x00", "NaN"])
@pytest.mark.parametrize("file", [GENERATION_CONFIG, CONFIG])
def test_files_that_are_no_configuration(text: str, file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(GenerationError, match=file):
        Configuration.read(tmp_path)
    (tmp_path / file).write_bytes(b"\xff\xfe{")
    with pytest.raises(GenerationError, match=f"cannot read .*{file}"):
        Configuration.read(tmp_path)


def read(folder: Path, generation: Mapping[str, Any], config: Mapping[str, Any]) -> Configuration:
    (folder / GENERATION_CONFIG).write_text(json.dumps(generation))
    (folder / CONFIG).write_text(json.dumps(config))
    return Configuration.read(folder)


def test_the_generation_settings_come_first(tmp_path: Path) -> None:
    found = read(tmp_path, {"eos_token_id": [3, 4]}, {"eos_token_id": 2, "pad_token_id": 1})
    assert (found.stop_ids, found.pad_id) == ((3, 4), 1)
    assert read(tmp_path, {}, {"eos_token_id": 2}).pad_id == 2
    assert read(tmp_path, {}, {"n_positions": 64}).context == 64
    assert read(tmp_path, {}, {"max_position_embeddings": -1}).context is None
    assert Configuration.read(tmp_path / "nowhere").stop_ids == ()


def test_the_first_token_of_a_decoder(tmp_path: Path) -> None:
    names = {"decoder_start_token_id": 7, "bos_token_id": 1}
    assert read(tmp_path, names, {}).start_id == 7
    assert read(tmp_path, {"bos_token_id": 1}, {"decoder_start_token_id": 0}).start_id == 0
    assert read(tmp_path, {}, {"bos_token_id": 1}).start_id == 1
    assert read(tmp_path, {}, {}).start_id == 0


def test_rules_are_those_of_one_file(tmp_path: Path) -> None:
    found = read(tmp_path, {"no_repeat_ngram_size": 3}, {"suppress_tokens": [1]})
    assert found.rules == {"no_repeat_ngram_size": 3}
    found = read(tmp_path, {}, {"suppress_tokens": [1], "repetition_penalty": 2})
    assert found.rules == {"repetition_penalty": 2.0, "suppress_tokens": [1]}
    assert isinstance(found.rules["repetition_penalty"], float)


def test_forced_tokens_are_those_of_the_model(tmp_path: Path) -> None:
    found = read(tmp_path, {"forced_eos_token_id": [2, 99]}, {"bos_token_id": 64})
    found.check_vocabulary("vocabulary", starts=True)
    with pytest.raises(GenerationError, match=r"forced_eos_token_id is \[2, 99\], .* 0 to 63"):
        found.check_vocabulary(64, starts=False)
    found = read(tmp_path, {}, {"bos_token_id": 64})
    found.check_vocabulary(64, starts=False)
    with pytest.raises(GenerationError, match="decoder_start_token_id is 64"):
        found.check_vocabulary(64, starts=True)
