"""Whisper's own generation: languages, tasks, timestamps, and audio of any length.

transformers' ``generate`` of Whisper does all of it, with its logits processors and its windows of
long audio. Here the encoder and the decoder that it calls run in sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration
from transformers.modeling_outputs import Seq2SeqLMOutput

from coreai_onnx.errors import GenerationError, failures_as
from coreai_onnx.huggingface.generation.configuration import CONFIG
from coreai_onnx.huggingface.generation.decoding import ATTENTIONS, Decoding
from coreai_onnx.huggingface.generation.prompts import read_features
from coreai_onnx.huggingface.generation.session_model import (
    SAMPLING,
    SessionEncoder,
    WithoutWeights,
    seeded,
)
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.tensors.outputs import Array

SPEECH_OPTIONS = ("language", "task", "return_timestamps")
"""The options that only Whisper has."""
_NOT_PASSED = ("seed", "stop_ids")


class Speech:
    """A Whisper model whose encoder and decoder run in sessions.

    Args:
        folder: The exported folder, with its configurations.
        encoder: The session of the encoder.
        decoder: The session of the decoder.
    """

    def __init__(self, folder: Path, encoder: Session, decoder: Session) -> None:
        """Read the configurations.

        Raises:
            GenerationError: If one cannot be read, or has other sizes than the model.
        """
        with failures_as(GenerationError, f"cannot read the configuration of {folder}"):
            config = WhisperConfig.from_pretrained(folder, local_files_only=True)
            settings = GenerationConfig.from_pretrained(folder, local_files_only=True)
            _check_sizes(config, encoder, decoder)
            layers = config.encoder_layers, config.decoder_layers
            # The layers run in the sessions, and padding needs no embedding here.
            config.encoder_layers = config.decoder_layers = 0
            config.pad_token_id = None
            self.model = _Whisper(config, encoder, decoder)
            # Timestamps of words read the attention of each layer.
            config.encoder_layers, config.decoder_layers = layers
        if settings.repetition_penalty is not None:  # transformers takes no integer
            settings.repetition_penalty = float(settings.repetition_penalty)
        self.model.generation_config = settings

    def generate(self, prompt: Any, options: Mapping[str, Any]) -> Array:
        """Return the tokens that ``generate`` of transformers returns for the same settings.

        Args:
            prompt: A spectrogram ``[batch, bins, frames]`` or ``[bins, frames]``, of any length.
            options: As for :func:`coreai_onnx.generate`; ``max_new_tokens`` is by default that of
                the model.

        Returns:
            int64 ``[batch, length]`` or ``[length]``, without the tokens that the decoder starts
            from.

        Raises:
            GenerationError: If the prompt is not a spectrogram, or an option is not valid.
        """
        spectrogram = read_features(prompt)
        arguments = {name: x for name, x in options.items() if name not in _NOT_PASSED}
        if SAMPLING.intersection(arguments):
            # Whisper's generation samples only with a temperature: top_k or top_p alone change
            # nothing.
            arguments = {"temperature": 1.0, "do_sample": True} | arguments
        if options.get("stop_ids"):
            arguments["eos_token_id"] = list(options["stop_ids"])
        failures = failures_as(GenerationError, "Whisper's generation failed")
        with failures, torch.no_grad(), seeded(options.get("seed")):
            tokens = self.model.generate(spectrogram.ids, **arguments)
        ids: Array = tokens.numpy()
        return ids[0] if spectrogram.is_single else ids


def _check_sizes(config: Any, encoder: Session, decoder: Session) -> None:
    """Refuse sizes that differ from the model's: transformers allocates windows and scores by them.

    Raises:
        GenerationError: If one is not that of the model.
    """
    _, bins, frames = encoder.inputs[0].dims
    stride = 2  # of the encoder's second convolution
    sizes = {
        "num_mel_bins": bins,
        "max_source_positions": frames // stride if isinstance(frames, int) else None,
        "vocab_size": decoder.outputs[0].dims[-1],
    }
    for name, size in sizes.items():
        if isinstance(size, int) and getattr(config, name) != size:
            raise GenerationError(
                f"{name} of {CONFIG} is {getattr(config, name)}, and that of the model is {size}\n"
                "  correct the file, or export the model again"
            )


class _Whisper(WithoutWeights, WhisperForConditionalGeneration):
    """The model that transformers' ``generate`` calls; it has modules but no weights."""

    def __init__(self, config: Any, encoder: Session, decoder: Session) -> None:
        # No memory for the weights, which are in the sessions.
        with torch.device("meta"):
            super().__init__(config)
        self._encoder_in_session, self._decoder = SessionEncoder(encoder), decoder
        self._decoding: Decoding | None = None
        self._state: torch.Tensor | None = None
        self._has_attentions = any(info.name.startswith(ATTENTIONS) for info in decoder.outputs)

    def get_encoder(self, *_: Any, **__: Any) -> torch.nn.Module:
        """Return the encoder."""
        return self._encoder_in_session

    def forward(
        self,
        input_features: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        **unused: Any,
    ) -> Seq2SeqLMOutput:
        """Return the logits after the last token, ``[batch, 1, vocabulary]``."""
        del attention_mask, unused
        assert decoder_input_ids is not None
        if decoder_attention_mask is not None and not bool(decoder_attention_mask.all()):
            raise GenerationError(
                "earlier text of different lengths in a batch (condition_on_prev_tokens) is not "
                "supported: give one spectrogram at a time"
            )
        if encoder_outputs is None:
            encoder_outputs = self._encoder_in_session(input_features=input_features)
        last = self._decoding
        was_read = (
            last is not None
            and encoder_outputs.last_hidden_state is self._state
            and last.ids.shape[1] + 1 == decoder_input_ids.shape[1]
        )
        decoding = self._continued(decoder_input_ids, encoder_outputs.last_hidden_state)
        logits = decoding.logits()
        # Of tokens that a beam exchange made the decoder read again, transformers has them already.
        count = 1 if was_read else decoder_input_ids.shape[1]
        attentions = tuple(x[:, :, -count:] for x in decoding.attentions)
        # transformers collects those of the decoder's own tokens as well, which nothing reads.
        return Seq2SeqLMOutput(
            logits=logits[:, None], cross_attentions=attentions, decoder_attentions=()
        )

    def generate(self, *args: Any, **options: Any) -> Any:
        """Generate, as ``generate`` of transformers does.

        Raises:
            GenerationError: If timestamps of words are asked for, and the file has no attentions.
        """
        if options.get("return_token_timestamps") and not self._has_attentions:
            raise GenerationError(
                "timestamps of words need the attention to the sound, which the file does not "
                'return: export the model with include=["cross_attentions"]'
            )
        # The states are in the session: a cache of transformers would find no keys and values.
        return super().generate(*args, **{"use_cache": False, **options})

    def _continued(self, ids: torch.Tensor, state: torch.Tensor) -> Decoding:
        """Return a decoding of these tokens; the last call's if they extend it by one token."""
        last = self._decoding
        # Another window, or a beam that was exchanged, starts anew: the states belong to the last
        # tokens.
        if last is not None and state is self._state and torch.equal(last.ids, ids[:, :-1]):
            last.extend(ids[:, -1:])
            return last
        if last is not None:
            # States are released at once, because they may be large.
            last.close()
        self._decoding, self._state = Decoding(self._decoder), state
        self._decoding.reserve(self.config.max_target_positions)
        self._decoding.fix({"encoder_hidden_states": state})
        self._decoding.extend(ids)
        return self._decoding
