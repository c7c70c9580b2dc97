"""Models of waveforms."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch.export import Dim

from tests.models.architecture import HEADS, LAYERS, WIDTH, Architecture, Inputs

_SHAPE: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 4, 2),
    "conv_kernel": (10, 5, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}


def _wav2vec2() -> torch.nn.Module:
    return transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(**_SHAPE))


def _hubert() -> torch.nn.Module:
    config = transformers.HubertConfig(
        **_SHAPE, do_stable_layer_norm=True, feat_extract_norm="layer", conv_bias=True
    )
    return transformers.HubertModel(config)


def _waveform(batch: int, length: int) -> Inputs:
    return {"input_values": torch.randn(batch, 400 + 37 * length)}


def _dims() -> dict[str, Any]:
    return {"input_values": {0: Dim("batch"), 1: Dim("samples", min=400, max=16000)}}


AUDIO = (
    Architecture("wav2vec2", _wav2vec2, _waveform, _dims()),
    Architecture("hubert", _hubert, _waveform, _dims()),
)
