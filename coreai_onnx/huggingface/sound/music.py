"""MusicGen: music from text, a code of each of several codebooks in each step.

The layout is that of optimum and transformers.js: ``text_encoder.onnx``,
``decoder_model_merged.onnx``, ``build_delay_pattern_mask.onnx``, and ``encodec_decode.onnx``, which
makes sound of all codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim
from transformers.modeling_outputs import Seq2SeqLMOutput

from coreai_onnx.huggingface.decoders import BATCH, SEQUENCE
from coreai_onnx.huggingface.encoder_decoders import DecoderPart
from coreai_onnx.huggingface.generation.decoding import Decoding
from coreai_onnx.huggingface.generation.session_model import SessionEncoder, encoded, run
from coreai_onnx.huggingface.media.model_part import ModelInput, ModelPart
from coreai_onnx.huggingface.transformers_names import ModelOutput
from coreai_onnx.runtime.sessions.session import Session

TEXT_FILE, CODES_FILE = "text_encoder.onnx", "encodec_decode.onnx"
DELAYS_FILE = "build_delay_pattern_mask.onnx"
_EXAMPLE_LENGTH = 12
_PADDING = "padding_total"


class CodesDecoder(DecoderPart):
    """The decoder; each text has a row of tokens for each codebook."""

    # Of guidance, a text without words is masked, and its state is the bias of a projection.
    masks_state = True

    def tokens(self, batch: int, length: int, dtype: torch.dtype) -> torch.Tensor:
        """Return example tokens."""
        rows = batch * self.model.decoder.num_codebooks
        ids: torch.Tensor = super().tokens(rows, length, dtype)
        return ids

    def dims_of_tokens(self) -> Any:
        """Return the dynamic dims of `tokens`."""
        return {0: self.model.decoder.num_codebooks * Dim(BATCH), **self.token_dims}

    def longest(self, config: Any) -> int:
        """Return the length of the table of positions."""
        return int(config.decoder.max_position_embeddings)


def music_parts(model: Any) -> dict[str, ModelPart]:
    """Return the parts beside encoder and decoder, by file."""
    decoder = model.decoder
    count, channels = decoder.num_codebooks, decoder.config.audio_channels
    convolutions = [x for x in model.audio_encoder.decoder.modules() if hasattr(x, _PADDING)]
    paddings = [int(x.padding_total) for x in convolutions]
    # Encodec reflects its input at the ends, and pads one that is too short for it otherwise.
    fewest = 1 + max(paddings)
    codes = ModelInput(
        "audio_codes",
        (1, 2, count // channels, fewest + 2),
        {1: BATCH, 3: Dim("number_of_codes", min=fewest)},
        0,
    )
    ids = ModelInput("input_ids", (2 * count, 3), {0: count * Dim(BATCH), 1: SEQUENCE}, 1)

    def sound(audio_codes: torch.Tensor) -> list[torch.Tensor]:
        for convolution, padding in zip(convolutions, paddings, strict=True):
            # The sizes are buffers, which an export cannot read; the strides of a decoder are 1.
            methods = {_PADDING: padding, "_get_extra_padding_for_conv1d": lambda _: 0}
            vars(convolution).update(methods)
        try:
            return [model.audio_encoder.decode(audio_codes, [None]).audio_values]
        finally:
            for convolution in convolutions:
                for name in methods:
                    del vars(convolution)[name]

    def delays(
        input_ids: torch.Tensor, pad: torch.Tensor, max_length: torch.Tensor
    ) -> Sequence[torch.Tensor]:
        return delayed(input_ids, pad, max_length, count, channels)

    scalars = [
        ModelInput(name, (), {}, value)
        for name, value in (("pad_token_id", 0), ("max_length", _EXAMPLE_LENGTH))
    ]
    outputs = ["input_ids_edited", "delay_pattern_mask"]
    return {
        DELAYS_FILE: ModelPart(model, delays, [ids, *scalars], outputs),
        CODES_FILE: ModelPart(model, sound, [codes], ["audio_values"]),
    }


def delayed(
    input_ids: torch.Tensor, pad: torch.Tensor, max_length: torch.Tensor, count: int, channels: int
) -> list[torch.Tensor]:
    """Return the codes at their delayed steps, and the pattern of all steps: -1 is to be generated.

    This is ``build_delay_pattern_mask`` of transformers, whose loops and branches an export cannot
    follow: each codebook is a step later than the one before.
    """
    length = input_ids.shape[1]
    most = max_length.item()
    torch._check(most >= length)
    delay = torch.arange(count)[:, None] // channels
    steps = torch.arange(most) - delay
    codes = input_ids.reshape(-1, count, length)
    index = steps.clamp(0, length - 1).expand(codes.shape[0], -1, -1)
    pattern = torch.where(steps < length, codes.gather(2, index), -1)
    last = most - count // channels
    pattern = torch.where((steps <= 0) | (steps > last), pad, pattern).flatten(0, 1)
    # With fewer steps, the last codebook would have none.
    is_short = max_length < 2 * (count // channels) - 1
    edited = torch.where(is_short, input_ids, pattern[:, :length])
    return [edited, torch.where(is_short, -1, pattern)]


class MusicModel:
    """Methods of a MusicGen whose parts run in sessions.

    Attributes:
        sessions: Those of the text encoder, the decoder and the decoder of codes.
    """

    sessions: list[Session]
    audio_encoder: Any

    def open(self, folder: Path, sessions: list[Session]) -> None:
        """Take the sessions."""
        del folder
        self.sessions = sessions

        def decode(codes: torch.Tensor, **_: Any) -> ModelOutput:
            return ModelOutput(run(sessions[2], {"audio_codes": codes}))

        self.audio_encoder.decode = decode

    def get_encoder(self, *_: Any, **__: Any) -> torch.nn.Module:
        """Return the text encoder."""
        return SessionEncoder(self.sessions[0])

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Decoding | None = None,
        **unused: Any,
    ) -> Seq2SeqLMOutput:
        """Return the logits after tokens of each codebook, and the cache."""
        del input_ids, unused
        assert decoder_input_ids is not None
        decoding = Decoding(self.sessions[1]) if past_key_values is None else past_key_values
        decoding.fix(encoded(encoder_outputs, attention_mask))
        decoding.extend(decoder_input_ids)
        return Seq2SeqLMOutput(logits=decoding.read(0), past_key_values=decoding)
