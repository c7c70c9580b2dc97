"""Small models that make sound in steps."""

from __future__ import annotations

from typing import Any

import torch
import transformers

SPEECH: dict[str, Any] = {
    "vocab_size": 261, "hidden_size": 16, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16, "num_mel_bins": 8, "speech_decoder_prenet_units": 16,
    "speech_decoder_postnet_units": 16, "speech_decoder_postnet_layers": 2,
    "speaker_embedding_dim": 12, "max_speech_positions": 200, "max_text_positions": 60,
    "pad_token_id": 0,
}  # fmt: skip
VOCODER: dict[str, Any] = {
    "model_in_dim": 8, "upsample_initial_channel": 8, "upsample_rates": [4], "sampling_rate": 8000,
    "upsample_kernel_sizes": [8], "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1]],
}  # fmt: skip
MUSIC: dict[str, Any] = {
    "text_encoder": {
        "model_type": "t5", "vocab_size": 261, "d_model": 24, "d_kv": 8, "d_ff": 16,
        "num_layers": 1, "num_heads": 2,
    },
    "audio_encoder": {
        "model_type": "encodec", "sampling_rate": 8000, "hidden_size": 16, "num_filters": 4,
        "codebook_size": 32, "codebook_dim": 16, "upsampling_ratios": [4, 2],
        "num_lstm_layers": 1, "target_bandwidths": [20.0],
    },
    "decoder": {
        "model_type": "musicgen_decoder", "vocab_size": 32, "hidden_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16, "num_codebooks": 4,
        "pad_token_id": 32, "bos_token_id": 32, "max_position_embeddings": 64,
    },
}  # fmt: skip


def drawn(model: Any) -> Any:
    """Return a model with weights whose results depend on its input."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    return model.eval()


def speech() -> Any:
    """Return a SpeechT5 with its vocoder."""
    model = drawn(transformers.SpeechT5ForTextToSpeech(transformers.SpeechT5Config(**SPEECH)))
    config = transformers.SpeechT5HifiGanConfig(**VOCODER)
    model.vocoder = drawn(transformers.SpeechT5HifiGan(config))
    return model


def music() -> Any:
    """Return a MusicGen."""
    config = transformers.MusicgenConfig(**MUSIC)
    model = drawn(transformers.MusicgenForConditionalGeneration(config))
    torch.nn.init.normal_(model.enc_to_dec_proj.bias)
    model.generation_config = transformers.GenerationConfig(
        decoder_start_token_id=32, pad_token_id=32, bos_token_id=32, max_length=20,
        guidance_scale=3.0, do_sample=False,
    )  # fmt: skip
    return model
