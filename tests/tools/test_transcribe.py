"""The reader of CTranslate2's files, on a tiny Whisper that the test writes as CTranslate2 does."""

from __future__ import annotations

import struct
import wave
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from tools import transcribe as tool

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CODES = {"float32": 0, "int8": 1, "int16": 2, "float16": 4}
EMBEDDINGS = "decoder/embeddings/weight"
IDS = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 1, "decoder_start_token_id": 2}


def tiny() -> WhisperForConditionalGeneration:
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=30,
        d_model=16,
        num_mel_bins=8,
        max_source_positions=12,
        max_target_positions=10,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=40,
        **IDS,
    )
    model = WhisperForConditionalGeneration(config).eval()
    for weight in model.parameters():  # norms and biases are ones and zeros in a new model
        weight.data = torch.randn(weight.shape) / 4
    model.tie_weights()
    return model


def text(value: str) -> bytes:
    return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"


def variable(name: str, value: np.ndarray) -> bytes:
    head = struct.pack(f"<B{value.ndim}I", value.ndim, *value.shape)
    return (
        text(name)
        + head
        + struct.pack("<BI", CODES[value.dtype.name], value.nbytes)
        + value.tobytes()
    )


def file_of(
    variables: Mapping[str, np.ndarray], spec: str = "WhisperSpec", version: int = 6
) -> bytes:
    head = struct.pack("<I", version) + text(spec) + struct.pack("<II", 3, len(variables))
    aliases = struct.pack("<I", 1) + text("decoder/projection/weight") + text(EMBEDDINGS)
    return head + b"".join(variable(*item) for item in variables.items()) + aliases


def variables_of(model: WhisperForConditionalGeneration) -> dict[str, np.ndarray]:
    """Name and join the weights as CTranslate2 does."""
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    variables: dict[str, np.ndarray] = {}

    def put(to: str, *names: str) -> None:
        for ours, theirs in (("weight", "gamma" if "norm" in to else "weight"),
                             ("bias", "beta" if "norm" in to else "bias")):  # fmt: skip
            empty = np.zeros(model.config.d_model, np.float32)  # of keys
            variables[f"{to}/{theirs}"] = np.concatenate(
                [state.get(f"{n}.{ours}", empty) for n in names]
            )

    for side, count in (("encoder", 2), ("decoder", 1)):
        put(f"{side}/layer_norm", f"model.{side}.layer_norm")
        variables[f"{side}/position_encodings/encodings"] = state[
            f"model.{side}.embed_positions.weight"
        ]
        heads = getattr(model.config, f"{side}_attention_heads")
        variables[f"{side}/num_heads"] = np.array(heads, np.int16)
        for i in range(count):
            to, at = f"{side}/layer_{i}", f"model.{side}.layers.{i}"
            put(f"{to}/self_attention/layer_norm", f"{at}.self_attn_layer_norm")
            put(f"{to}/self_attention/linear_0", *(f"{at}.self_attn.{x}_proj" for x in "qkv"))
            put(f"{to}/self_attention/linear_1", f"{at}.self_attn.out_proj")
            put(f"{to}/ffn/layer_norm", f"{at}.final_layer_norm")
            put(f"{to}/ffn/linear_0", f"{at}.fc1")
            put(f"{to}/ffn/linear_1", f"{at}.fc2")
    to, at = "decoder/layer_0/attention", "model.decoder.layers.0.encoder_attn"
    put(f"{to}/layer_norm", f"{at}_layer_norm")
    put(f"{to}/linear_0", f"{at}.q_proj")
    put(f"{to}/linear_1", f"{at}.k_proj", f"{at}.v_proj")
    put(f"{to}/linear_2", f"{at}.out_proj")
    put("encoder/conv1", "model.encoder.conv1")
    put("encoder/conv2", "model.encoder.conv2")
    variables[EMBEDDINGS] = state["model.decoder.embed_tokens.weight"]
    variables["decoder/alibi"] = np.array(0, np.int8)
    return variables


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_converted_model_has_the_weights_and_sizes(dtype: type) -> None:
    model = tiny().to(torch.from_numpy(np.empty(0, dtype)).dtype)
    variables = variables_of(model)
    variables = {n: v.astype(dtype) if v.dtype == np.float32 else v for n, v in variables.items()}
    converted = tool.model_of(tool.read_ctranslate2(file_of(variables)), IDS)
    assert converted.config.to_diff_dict() == model.float().config.to_diff_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(converted.state_dict()[name], weight), name


def test_integers_are_divided_by_the_scales_of_their_rows() -> None:
    weight = np.array([[127, -64], [3, 1]], np.int8)
    stored = {EMBEDDINGS: weight,
              "decoder/embeddings/weight_scale": np.array([2, 4], np.float32),
              "w16": np.array([[300, -5]], np.int16),
              "w16_scale": np.array(8, np.float32)}  # fmt: skip
    read = tool.read_ctranslate2(file_of(stored))
    assert read.keys() == {EMBEDDINGS, "decoder/projection/weight", "w16"}
    np.testing.assert_array_equal(read[EMBEDDINGS], [[63.5, -32], [0.75, 0.25]])
    np.testing.assert_array_equal(read["w16"], [[37.5, -0.625]])


WHOLE = file_of({EMBEDDINGS: np.ones((2, 3), np.float32)})
HEAD = len(file_of({})) - len(text("decoder/projection/weight") + text(EMBEDDINGS)) - 4
AFTER_SHAPE = HEAD + len(text(EMBEDDINGS)) + 9


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (WHOLE[:-1], f"the file ends too early, at byte {len(WHOLE) - 1}"),
        (WHOLE[: AFTER_SHAPE + 5 + 23], f"the file ends too early, at byte {AFTER_SHAPE + 28}"),
        (WHOLE + b"\0", f"the file does not end after its last variable, at byte {len(WHOLE)}"),
        (file_of({}, version=5), "version 5 of the format is not 6"),
        (file_of({}, "TransformerSpec"), "the file has a TransformerSpec, not a WhisperSpec"),
        (file_of({}), f"decoder/projection/weight stands for {EMBEDDINGS}, which is missing"),
        (WHOLE[:AFTER_SHAPE] + b"\x09" + WHOLE[AFTER_SHAPE + 1 :],
         "dtype 9 is none of 0, 1, 2, 3, 4"),
        (WHOLE[:AFTER_SHAPE] + b"\x04" + WHOLE[AFTER_SHAPE + 1 :],
         r"24 bytes are not float16 of shape \[2, 3\]"),
    ],
)  # fmt: skip
def test_files_that_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        tool.read_ctranslate2(data)


def test_sound_is_resampled(tmp_path: Path) -> None:
    def tone(rate: int, *frequencies: int) -> np.ndarray:
        return sum(np.sin(2 * np.pi * f * np.arange(rate) / rate) for f in frequencies) / 4

    path = tmp_path / "tone.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 22_050, 0, "NONE", ""))
        # The second tone is above what 16 kHz can have.
        file.writeframes((tone(22_050, 1000, 9000) * 32768).astype(np.int16).tobytes())
    heard = tool.samples(path)
    assert heard.dtype == np.float32
    assert np.abs(heard - tone(16_000, 1000)).max() <= 2 / 32768  # two steps of 16 bits
