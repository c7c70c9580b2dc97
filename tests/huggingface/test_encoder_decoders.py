"""The parts of models with an encoder and a decoder."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
import transformers

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.encoder_decoders import CrossCache, DecoderPart, EncoderPart
from tests.models.sequence_to_sequence import SEQUENCE_TO_SEQUENCE
from tests.support.tolerances import assert_close


def parts(architecture: Any) -> tuple[Any, EncoderPart, DecoderPart, CrossCache]:
    model = architecture.module()
    encoder = EncoderPart(model)
    decoder = DecoderPart(model, encoder)
    return model, encoder, decoder, CrossCache(decoder)


@pytest.mark.parametrize("architecture", SEQUENCE_TO_SEQUENCE, ids=lambda one: one.name)
def test_the_parts_together_are_the_model(architecture: Any) -> None:
    model, encoder, decoder, cross = parts(architecture)
    given = architecture.arguments(2, 9)
    ids = given.pop("decoder_input_ids")
    with torch.no_grad():
        wanted = model(**given, decoder_input_ids=ids).logits
        state = encoder([given[name] for name in encoder.input_names])
        computed = cross(state)
        own = [slot.example(2, 0) for slot in decoder.own]
        mask = given.get("attention_mask")
        first, *own = decoder(mask, ids[:, :2], state, own, computed)
        last, *_ = decoder(mask, ids[:, 2:], state, own, computed)
    assert_close(torch.cat([first, last], dim=1), wanted)


def test_names() -> None:
    _, encoder, decoder, cross = parts(SEQUENCE_TO_SEQUENCE[0])
    assert encoder.input_names == ["input_ids", "attention_mask"]
    cache = [f"past_key_values.0.{part}.{kind}" for part in ("decoder", "encoder")
             for kind in ("key", "value")]  # fmt: skip
    first = ["encoder_attention_mask", "input_ids", "encoder_hidden_states"]
    assert decoder.input_names == [*first, *cache]
    assert decoder.output_names == [
        "logits", "present.0.decoder.key", "present.0.decoder.value",
    ]  # fmt: skip
    assert cross.output_names == cache[2:]


def test_a_speech_model() -> None:
    _, encoder, decoder, _ = parts(SEQUENCE_TO_SEQUENCE[2])
    assert encoder.input_names == ["input_features"]
    assert encoder.example(torch.float32)[0][0].shape == (2, 16, 40)
    assert decoder.input_names[0] == "input_ids"


def test_a_speech_model_of_samples() -> None:
    """Moonshine: sound of any length, and no mask."""
    config = transformers.MoonshineConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=16,
        encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
    )
    torch.manual_seed(0)
    model = transformers.MoonshineForConditionalGeneration(config).eval()
    encoder = EncoderPart(model)
    decoder = DecoderPart(model, encoder)
    assert (encoder.input_names, decoder.input_names[0]) == (["input_values"], "input_ids")
    ids, samples = torch.tensor([[5, 9, 7]]), torch.randn(1, 6000)
    with torch.no_grad():
        wanted = model(input_values=samples, decoder_input_ids=ids).logits
        state = encoder([samples])
        own = [slot.example(1, 0) for slot in decoder.own]
        logits, *_ = decoder(None, ids, state, own, CrossCache(decoder)(state))
    assert_close(logits, wanted)


def test_a_speech_model_of_frames_with_a_mask() -> None:
    """Speech2Text: the decoder takes the mask of the frames, of which four make one state."""
    config = transformers.Speech2TextConfig(
        vocab_size=32,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        conv_channels=16,
        input_feat_per_channel=8,
    )
    torch.manual_seed(0)
    model = transformers.Speech2TextForConditionalGeneration(config).eval()
    encoder = EncoderPart(model)
    decoder = DecoderPart(model, encoder)
    assert encoder.input_names == ["input_features", "attention_mask"]
    assert decoder.input_names[0] == "encoder_attention_mask"
    frames, mask = torch.randn(2, 57, 8), torch.ones(2, 57, dtype=torch.int64)
    mask[1, 24:] = 0
    ids = torch.tensor([[5, 9, 7], [4, 8, 6]])
    with torch.no_grad():
        wanted = model(frames, attention_mask=mask, decoder_input_ids=ids).logits
        state = encoder([frames, mask])
        own = [slot.example(2, 0) for slot in decoder.own]
        logits, *_ = decoder(mask, ids, state, own, CrossCache(decoder)(state))
    assert_close(logits, wanted)


def test_other_speech_models_are_refused() -> None:
    model = Namespace(
        main_input_name="input_values", config=Namespace(model_type="speecht5"), training=False
    )
    with pytest.raises(ModelSourceError, match="an encoder of input_values is not exported yet"):
        EncoderPart(model)


def test_a_decoder_that_takes_one_token_with_a_cache_is_refused() -> None:
    config = transformers.ProphetNetConfig(
        vocab_size=32,
        hidden_size=16,
        num_encoder_layers=1,
        num_decoder_layers=1,
        num_encoder_attention_heads=2,
        num_decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
    )
    model = transformers.ProphetNetForConditionalGeneration(config).eval()
    with pytest.raises(ModelSourceError, match=r"3 tokens after cached ones: .*of length 1$"):
        DecoderPart(model, EncoderPart(model))
