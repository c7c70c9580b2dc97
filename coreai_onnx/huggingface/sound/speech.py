"""SpeechT5: speech from text and the embedding of a speaker, a few frames of spectrum in each step.

The layout is that of optimum and transformers.js: ``encoder_model.onnx``,
``decoder_model_merged.onnx``, and ``decoder_postnet_and_vocoder.onnx``, which makes sound of all
frames.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.export import Dim

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.decoders import BATCH
from coreai_onnx.huggingface.encoder_decoders import SOURCE, DecoderPart, EncoderPart
from coreai_onnx.huggingface.generation.decoding import empty_states
from coreai_onnx.huggingface.generation.session_model import run
from coreai_onnx.huggingface.media.model_part import ModelInput, ModelPart
from coreai_onnx.huggingface.sources import LoadedModel
from coreai_onnx.runtime.sessions.session import Session

VOCODER_FILE = "decoder_postnet_and_vocoder.onnx"
VOCODER_CONFIG = "vocoder_config.json"
_VOCODER = "vocoder"
_RATE = "sampling_rate"
_EXAMPLE_FRAMES = 20


class TextEncoder(EncoderPart):
    """The encoder, which computes the mask of its text too.

    Attributes:
        input_names: ``input_ids``.
        output_names: ``encoder_outputs`` and ``encoder_attention_mask``.
    """

    output_names = ("encoder_outputs", "encoder_attention_mask")

    def __init__(self, model: Any) -> None:
        """Take the encoder of a model."""
        super().__init__(model)
        self.input_names = ["input_ids"]

    def forward(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the last hidden state and the mask."""
        return self.state(inputs), self._mask(inputs)

    def state(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the last hidden state."""
        mask = self._mask(inputs)
        state: torch.Tensor = self.encoder(*inputs, mask, return_dict=True).last_hidden_state
        return state

    def _mask(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        mask: torch.Tensor = (inputs[0] != self.model.config.pad_token_id).long()
        return mask

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Return the dynamic dims; the table of positions has a length."""
        return ([{0: BATCH, 1: Dim(SOURCE, max=self.model.config.max_text_positions)}],)


class SpectrumDecoder(DecoderPart):
    """The decoder: from all frames so far to those of a step.

    Attributes:
        output_names: ``prob``, of the end, ``output_sequence_out``, ``spectrum`` and the cache. The
            frames of a step are rows of ``spectrum``, ``[batch * reduction_factor, bins]``.
    """

    token_names = ("output_sequence", "speaker_embeddings")
    result_names = ("prob", "output_sequence_out", "spectrum")

    def results(
        self, mask: torch.Tensor | None, tokens: Any, state: torch.Tensor, cache: Any
    ) -> Sequence[torch.Tensor]:
        """Return the results of a step."""
        frames, speaker = tokens
        decoder, postnet = self.model.speecht5.decoder, self.model.speech_decoder_postnet
        # Positions count from the first frame; the cache has the layers' states of the others.
        hidden = decoder.prenet(frames, speaker)[:, -1:]
        result = decoder.wrapped_decoder(
            hidden_states=hidden,
            encoder_hidden_states=state,
            encoder_attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            return_dict=True,
        )
        last = result.last_hidden_state[:, 0]
        spectrum = postnet.feat_out(last).unflatten(-1, (-1, frames.shape[2]))
        frames = torch.cat([frames, spectrum[:, -1:]], dim=1)
        return torch.sigmoid(postnet.prob_out(last)), frames, spectrum.flatten(0, 1)

    def tokens(self, batch: int, length: int, dtype: torch.dtype) -> list[torch.Tensor]:
        """Return example frames and speakers."""
        config = self.model.config
        frames = torch.zeros(batch, length, config.num_mel_bins, dtype=dtype)
        return [frames, torch.ones(batch, config.speaker_embedding_dim, dtype=dtype)]

    def dims_of_tokens(self) -> list[Any]:
        """Return the dynamic dims of `tokens`; the table of positions has a length."""
        length = Dim("decoder_sequence_length", max=self.model.config.max_speech_positions)
        return [{0: BATCH, 1: length}, {0: BATCH}]


def vocoder_part(loaded: LoadedModel) -> ModelPart:
    """Return the part that makes sound of frames.

    Args:
        loaded: The model; the vocoder is its attribute ``vocoder``, or in a folder of this name in
            the folder of the model.

    Raises:
        ModelSourceError: If the model does not have a vocoder, or it cannot be loaded.
    """
    model, folder = loaded.model, loaded.folder
    if folder is not None and (folder / _VOCODER).is_dir():
        with failures_as(ModelSourceError, f"cannot load {folder / _VOCODER}"):
            read = transformers.SpeechT5HifiGan.from_pretrained
            vocoder = read(folder / _VOCODER, dtype=model.dtype, local_files_only=True)
            model.vocoder = vocoder.eval()
    if not hasattr(model, _VOCODER):
        raise ModelSourceError(
            f"{type(model).__name__} needs a vocoder for the sound of its spectrograms: put the "
            "folder of a SpeechT5HifiGan into the model's folder as vocoder, or set model.vocoder"
        )
    frames = ModelInput(
        "spectrogram", (_EXAMPLE_FRAMES, model.config.num_mel_bins), {0: "number_of_frames"}
    )

    def sound(spectrogram: torch.Tensor) -> list[torch.Tensor]:
        return [model.vocoder(model.speech_decoder_postnet.postnet(spectrogram[None]))[0]]

    return ModelPart(model, sound, [frames], ["waveform"])


class SpeechModel:
    """Methods of a SpeechT5 whose three parts run in sessions.

    Attributes:
        sessions: Those of the encoder, the decoder and the vocoder.
    """

    config: Any
    sessions: list[Session]

    def open(self, folder: Path, sessions: list[Session]) -> None:
        """Take the sessions, and the sampling rate of the vocoder."""
        self.sessions = sessions
        self.config.sampling_rate = json.loads((folder / VOCODER_CONFIG).read_text())[_RATE]

    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        speaker_embeddings: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Return the sound of a text, as `generate_speech`."""
        return self.generate_speech(input_ids, speaker_embeddings, attention_mask, **options)

    def generate_speech(
        self,
        input_ids: torch.Tensor,
        speaker_embeddings: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        threshold: float = 0.5,
        minlenratio: float = 0.0,
        maxlenratio: float = 20.0,
        **unused: Any,
    ) -> torch.Tensor:
        """Return the sound of a text, ``[samples]``, as transformers' does with a vocoder.

        Raises:
            ModelSourceError: If there are several texts, or ``speaker_embeddings`` is missing.
        """
        del unused
        if len(input_ids) != 1 or speaker_embeddings is None:
            raise ModelSourceError("SpeechT5 needs one text at a time, and speaker_embeddings")
        encoder, decoder, vocoder = self.sessions
        feeds = {"input_ids": input_ids, "attention_mask": attention_mask}
        encoded = run(encoder, feeds)
        state = encoded.pop("encoder_outputs")
        length = state.shape[1] / self.config.reduction_factor
        fewest, most = int(length * minlenratio), int(length * maxlenratio)
        inputs = {
            **encoded,
            "encoder_hidden_states": state,
            "speaker_embeddings": speaker_embeddings,
            "output_sequence": torch.zeros(1, 1, self.config.num_mel_bins),
        }
        stream, spectrogram = decoder.stream(), []
        stream.state = empty_states(decoder, 1, 0)
        for step in range(1, max(fewest, most, 1) + 1):
            inputs["use_cache_branch"] = torch.tensor([step > 1])
            outputs = run(stream, inputs)
            inputs["output_sequence"] = outputs["output_sequence_out"]
            spectrogram.append(outputs["spectrum"])
            if step >= fewest and outputs["prob"].sum() >= threshold:
                break
        stream.close()
        return run(vocoder, {"spectrogram": torch.cat(spectrogram)})["waveform"]
