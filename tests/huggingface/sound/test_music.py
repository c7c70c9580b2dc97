"""MusicGen in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
import transformers

from coreai_onnx.huggingface import export_model, open_folder, pipeline
from coreai_onnx.huggingface.sound.music import DELAYS_FILE, delayed
from tests.huggingface.sound.models import music
from tests.support.huggingface_folders import tokenizer
from tests.support.tolerances import assert_close


@pytest.mark.slow
def test_the_music_of_texts(tmp_path: Path) -> None:
    """Codes and sound are those of transformers, of several texts, with and without guidance."""
    model = music()
    folder = export_model(model, tmp_path / "folder").path
    opened: Any = open_folder(folder)
    ids = torch.tensor([[5, 9, 17, 33, 8, 1], [4, 3, 6, 1, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    for scale in (1.0, 3.0):
        how = {"return_dict_in_generate": True, "output_scores": True, "guidance_scale": scale}
        wanted, result = (one.generate(**inputs, **how) for one in (model, opened))
        tokens = [torch.stack(x.scores).argmax(-1) for x in (wanted, result)]
        assert torch.equal(*tokens)
        assert len(tokens[0].unique()) > 4
        assert_close(result.sequences, wanted.sequences)
    delays = ort.InferenceSession(folder / DELAYS_FILE)
    starts = torch.full((4 * 2, 1), 0)
    for most in (4, 7, 12):
        feeds = {
            "input_ids": starts.numpy(),
            "pad_token_id": np.array(0),
            "max_length": np.array(most),
        }
        pattern = model.decoder.build_delay_pattern_mask(starts, 0, most)
        assert_close(delays.run(None, feeds), pattern)
    tokenizer().save_pretrained(folder)
    play = transformers.pipeline("text-to-audio", model, tokenizer=tokenizer())
    sound, expected = (
        one("What a day!", generate_kwargs={"max_new_tokens": 12})
        for one in (pipeline(folder, "text-to-audio"), play)
    )
    assert sound["sampling_rate"] == expected["sampling_rate"] == 8000
    assert_close(sound["audio"], expected["audio"])


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("most", [4, 7, 12])
def test_the_pattern_of_delays(channels: int, length: int, most: int) -> None:
    config = transformers.MusicgenDecoderConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, ffn_dim=8, vocab_size=16,
        num_codebooks=4, audio_channels=channels,
    )  # fmt: skip
    decoder = transformers.MusicgenForCausalLM(config)
    ids = torch.randint(16, (8, length))
    ids[:, 0] = 99  # tokens of a decoder start with the padding
    wanted = decoder.build_delay_pattern_mask(ids, 99, most)
    result = delayed(ids, torch.tensor(99), torch.tensor(most), 4, channels)
    assert all(torch.equal(*pair) for pair in zip(result, wanted, strict=True))
