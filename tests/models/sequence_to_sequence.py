"""An encoder and a decoder that attends to it."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch.export import Dim

from tests.models.architecture import (
    HEADS,
    VOCABULARY,
    WIDTH,
    Architecture,
    Inputs,
    ids_and_mask,
    token_ids,
)

_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_HALVES = {
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
}


def _t5() -> torch.nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=16,
        d_ff=96,
        num_layers=1,
        num_heads=HEADS,
        feed_forward_proj="gated-gelu",
        use_cache=False,
        **_SPECIAL,
    )
    return transformers.T5ForConditionalGeneration(config)


def _bart() -> torch.nn.Module:
    config = transformers.BartConfig(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        max_position_embeddings=80,
        use_cache=False,
        forced_eos_token_id=2,
        **_HALVES,
        **_SPECIAL,
    )
    return transformers.BartForConditionalGeneration(config)


def _whisper() -> torch.nn.Module:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        num_mel_bins=16,
        max_source_positions=20,
        max_target_positions=80,
        use_cache=False,
        **_HALVES,
        **_SPECIAL,
    )
    return transformers.WhisperForConditionalGeneration(config)


def _texts(batch: int, length: int) -> Inputs:
    return {**ids_and_mask(batch, length), "decoder_input_ids": token_ids(batch, length // 2 + 1)}


def _spectrogram(batch: int, length: int) -> Inputs:
    return {
        "input_features": torch.randn(batch, 16, 40),
        "decoder_input_ids": token_ids(batch, length),
    }


def _text_dims() -> dict[str, Any]:
    batch, seq, target = Dim("batch"), Dim("seq", max=64), Dim("target", max=64)
    source = {0: batch, 1: seq}
    return {
        "input_ids": source,
        "attention_mask": source,
        "decoder_input_ids": {0: batch, 1: target},
    }


def _speech_dims() -> dict[str, Any]:
    batch, target = Dim("batch"), Dim("target", max=64)
    return {"input_features": {0: batch}, "decoder_input_ids": {0: batch, 1: target}}


SEQUENCE_TO_SEQUENCE = (
    Architecture("t5", _t5, _texts, _text_dims()),
    Architecture("bart", _bart, _texts, _text_dims()),
    Architecture(
        "whisper",
        _whisper,
        _spectrogram,
        _speech_dims(),
        note="the spectrogram's length is fixed by the model",
    ),
)


def _switch() -> torch.nn.Module:
    config = transformers.SwitchTransformersConfig(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=16,
        d_ff=96,
        num_layers=2,
        num_decoder_layers=2,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        num_heads=HEADS,
        num_experts=4,
        expert_capacity=3,
        use_cache=False,
        **_SPECIAL,
    )
    return transformers.SwitchTransformersForConditionalGeneration(config)


SWITCH = Architecture("switch", _switch, _texts, _text_dims())
"""Experts that take three tokens each: those beyond are not computed."""
