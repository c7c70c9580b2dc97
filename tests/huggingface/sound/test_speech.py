"""SpeechT5 in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.speecht5.modeling_speecht5 import SpeechT5SpeechDecoderPrenet

import coreai_onnx
from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface import export_model, open_folder, pipeline
from tests.huggingface.sound.models import SPEECH, drawn, speech
from tests.support.huggingface_folders import tokenizer
from tests.support.tolerances import assert_close

SETTINGS = {"threshold": 1.3, "minlenratio": 2.0, "maxlenratio": 6.0}


@pytest.mark.slow
def test_the_sound_of_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """generate_speech, generate and the pipeline are those of transformers.

    SpeechT5 drops values of its spectrum when it speaks, too; the file draws its own.
    """
    monkeypatch.setattr(SpeechT5SpeechDecoderPrenet, "_consistent_dropout", lambda _, x, _p: x)
    model = speech()
    vocoder, source = model.vocoder, tmp_path / "source"
    del model.vocoder
    for part, place in ((model, source), (vocoder, source / "vocoder"), (tokenizer(), source)):
        part.save_pretrained(place)
    folder = export_model(source, tmp_path / "folder").path
    ids, speaker = tokenizer()("What a day!", return_tensors="pt").input_ids, torch.randn(1, 12)
    wanted = model.generate_speech(ids, speaker, vocoder=vocoder, **SETTINGS)
    opened: Any = open_folder(folder)
    assert isinstance(opened, transformers.SpeechT5ForTextToSpeech)
    assert_close(opened.generate_speech(ids, speaker, **SETTINGS), wanted)
    speak = pipeline(folder, "text-to-speech")
    result = speak("What a day!", forward_params={"speaker_embeddings": speaker, **SETTINGS})
    assert result["sampling_rate"] == 8000
    assert_close(torch.as_tensor(result["audio"]), wanted)
    for arguments in ((ids.repeat(2, 1), speaker), (ids,)):
        with pytest.raises(ModelSourceError, match="one text at a time, and speaker_embeddings"):
            opened.generate_speech(*arguments)


class Dropping(torch.nn.Module):
    """The dropout of SpeechT5's decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.prenet = SpeechT5SpeechDecoderPrenet(transformers.SpeechT5Config(**SPEECH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.prenet._consistent_dropout(x, 0.5)


def test_values_are_dropped() -> None:
    """Half of the values, the same ones of each row of a batch, at random in each call."""
    session = coreai_onnx.session(coreai_onnx.convert(Dropping(), torch.ones(2, 30, 40)))
    first, second = (session.run(torch.ones(2, 30, 40))[0] for _ in range(2))
    assert set(first.ravel().tolist()) == {0.0, 2.0}
    assert 0.9 < first.mean() < 1.1
    assert (first[0] == first[1]).all()
    assert (first != second).any()


def test_a_vocoder_is_needed(tmp_path: Path) -> None:
    model = drawn(transformers.SpeechT5ForTextToSpeech(transformers.SpeechT5Config(**SPEECH)))
    with pytest.raises(ModelSourceError, match="needs a vocoder for the sound of its"):
        export_model(model, tmp_path / "folder")
    model.save_pretrained(tmp_path / "source")
    (tmp_path / "source/vocoder").mkdir()
    with pytest.raises(ModelSourceError, match=r"cannot load .*vocoder"):
        export_model(tmp_path / "source", tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
