"""Encoders inside of a layer of embeddings."""

from __future__ import annotations

import pytest
import torch
from transformers.models.phi4_multimodal import modeling_phi4_multimodal as phi

from coreai_onnx.huggingface.media.extensions import _chunks, extension_parts
from tests.models.media import PICTURE_READERS


@pytest.mark.parametrize("size", [-1, 3, 4])
@pytest.mark.parametrize("before", [0, 2])
def test_chunks(size: int, before: int) -> None:
    starts = range(0, 11, size) if size > 0 else []
    expected = phi.adaptive_enc_mask(11, list(starts), left_window=before)
    actual = _chunks(None, 11, 2, size, before).expand(1, 11, 11)[0]
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("mode", ["speech", "vision"])
def test_features_of_sound(mode: str) -> None:
    (one,) = (one for one in PICTURE_READERS if one.name == "Phi-4-multimodal")
    model = one.make()
    sounds = torch.randn(1, 24, 16, generator=torch.Generator().manual_seed(0))
    part = extension_parts(model)["audio_encoder.onnx"]
    with torch.no_grad():
        embeds = model.model.embed_tokens_extend.audio_embed(
            torch.tensor([[5, 99, 99, 99]]), torch.zeros(1, 4, 32), sounds,
            audio_embed_sizes=torch.tensor([3]), audio_projection_mode=mode,
        )  # fmt: skip
        features = part([sounds, torch.ones(1, 24)])[int(mode == "vision")]
    torch.testing.assert_close(features[0], embeds[0, 1:])
