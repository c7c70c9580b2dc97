"""Encoders in sessions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation.generating import LanguageModel
from tests.models.sequence_to_sequence import SEQUENCE_TO_SEQUENCE


def opened(index: int, folder: Path) -> LanguageModel:
    return LanguageModel.open(export_model(SEQUENCE_TO_SEQUENCE[index].module(), folder).path)


def test_text(tmp_path: Path) -> None:
    model = opened(0, tmp_path / "t5")
    assert model.encoder is not None
    encoded = model.encoder.encode([[5, 9, 7], [4]], None, mask=None, pad_id=0)
    assert encoded.feeds["encoder_attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert encoded.feeds["encoder_hidden_states"].shape == (2, 3, 64)
    assert encoded.start.ids.tolist() == [[1], [1]]
    single = model.generate([5, 9, 7], max_new_tokens=4, stop_ids=())
    assert single.shape == (5,)
    batch = model.generate([[5, 9, 7], [4]], max_new_tokens=4, stop_ids=())
    assert batch[0].tolist() == single.tolist()


def test_a_spectrogram(tmp_path: Path) -> None:
    model, sound = opened(2, tmp_path / "whisper"), torch.randn(16, 40)
    tokens = model.generate(sound, max_new_tokens=4, stop_ids=())
    assert tokens.shape == (5,)
    assert model.generate(sound[None].numpy(), max_new_tokens=4, stop_ids=()).shape == (1, 5)
    for wrong in ([5, 9], "text", np.zeros(3)):
        with pytest.raises(GenerationError, match="the prompt is a spectrogram"):
            model.generate(wrong)
