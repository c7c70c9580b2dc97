"""Models in sessions as models of transformers, whose ``generate`` chooses the tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedConfig,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.generation.decoding import (
    Decoding,
    as_input,
    is_rewindable,
    wide_tensor,
)
from coreai_onnx.huggingface.transformers_names import CACHE
from coreai_onnx.runtime.sessions.session import Session

SAMPLING = frozenset({"temperature", "top_k", "top_p", "min_p"})
"""The options that turn on sampling."""


_DEFAULTS: Mapping[str, Callable[..., torch.Tensor]] = {
    "attention_mask": torch.ones_like,
    "token_type_ids": torch.zeros_like,
}
"""What models compute with if they are given no such input."""


class WithoutWeights:
    """A model whose weights are in sessions; transformers reads these two from weights."""

    @property
    def device(self) -> torch.device:
        """The device of inputs and results."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of inputs and results."""
        return torch.float32


def model_class(config: Any, file: Path) -> Any:
    """Return the class of transformers that a configuration names.

    Args:
        config: The configuration.
        file: Where it is from, for errors.

    Raises:
        ModelSourceError: If it names none, or transformers does not have it.
    """
    name = next(iter(config.architectures or ()), None)
    cls = getattr(transformers, name or "", None)
    if not isinstance(cls, type):
        raise ModelSourceError(f"{file}: transformers has no class {name}")
    return cls


def without_weights(cls: Any, config: Any, methods: Mapping[str, Any], *bases: type) -> Any:
    """Return a model of a class of transformers with other methods and no weights.

    Raises:
        ModelSourceError: If the class does not take the configuration.
    """
    # No memory for weights, and no time to draw them.
    with torch.device("meta"), failures_as(ModelSourceError, f"cannot build a {cls.__name__}"):
        return type(cls.__name__, (*bases, WithoutWeights, cls), dict(methods))(config).eval()


class SessionModel(WithoutWeights, PreTrainedModel, GenerationMixin):
    """A decoder in a session, with its encoder if it has one.

    ``generate`` is that of transformers: beams, candidates of an assistant, stopping criteria,
    streamers, and any logits processor. The model has no weights; they are in the sessions.

    Args:
        session: The session of the decoder.
        settings: The settings of ``generation_config``.
        encoder: The session of the encoder.
    """

    def __init__(
        self, session: Session, settings: Mapping[str, Any], encoder: Session | None = None
    ) -> None:
        """Describe the model."""
        size = session.outputs[0].dims[-1] if session.outputs else None
        config = PreTrainedConfig(is_encoder_decoder=encoder is not None)
        config.vocab_size = size if isinstance(size, int) else None
        super().__init__(config)
        self._session = session
        if encoder is not None:
            self.encoder = SessionEncoder(encoder)
        self.main_input_name = "input_ids" if encoder is None else encoder.inputs[0].name
        self.generation_config = GenerationConfig(**settings)
        # transformers then refuses candidates, of which some are taken back.
        self._is_stateful = not is_rewindable(session)

    def get_encoder(self, *_: Any, **__: Any) -> torch.nn.Module:
        """Return the encoder."""
        return self.encoder

    def generate(self, *args: Any, **options: Any) -> Any:
        """Generate, as ``generate`` of transformers does."""
        # A cache of transformers would find no keys and values to hold.
        if CACHE not in options:
            options[CACHE] = self.decoding()
        return super().generate(*args, **options)

    def decoding(self) -> Decoding:
        """Return a new stream of the decoder."""
        return Decoding(self._session)

    def further(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what the decoder reads beside new tokens and the encoder's result."""
        del input_ids
        return {}

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Decoding | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        logits_to_keep: int = 0,
        cache: Decoding | None = None,
        **unused: Any,
    ) -> Seq2SeqLMOutput:
        """Read tokens, and return the logits after the last ones.

        Args:
            input_ids: The tokens of a decoder, or those that an encoder reads.
            attention_mask: Their mask.
            past_key_values: The sequences so far, which the tokens are appended to; before 5.24.
            decoder_input_ids: The tokens of a decoder that has an encoder.
            decoder_attention_mask: Their mask.
            encoder_outputs: The result of the encoder.
            logits_to_keep: How many of the last tokens to return logits of; 0 for all of them.
            cache: The same, from 5.24 on.
            **unused: Arguments of other models.
        """
        # Without a cache, transformers passes all tokens in every step.
        decoding = past_key_values if cache is None else cache
        if decoding is None or unused.get("use_cache") is False:
            decoding = Decoding(self._session)
        if self.config.is_encoder_decoder:
            input_ids, mask = decoder_input_ids, decoder_attention_mask
            assert input_ids is not None
            decoding.fix(encoded(encoder_outputs, attention_mask) | self.further(input_ids))
        else:
            mask = attention_mask
        assert input_ids is not None
        decoding.extend(input_ids, mask)
        return Seq2SeqLMOutput(logits=decoding.read(logits_to_keep), **{CACHE: decoding})


class SessionEncoder(torch.nn.Module):
    """An encoder in a session.

    Args:
        session: The session.
    """

    def __init__(self, session: Session) -> None:
        """Take the session."""
        super().__init__()
        self._session = session
        self.main_input_name = session.inputs[0].name

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
        input_values: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Return the last hidden state."""
        del kwargs
        arguments = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "input_features": input_features,
            "input_values": input_values,
            "pixel_values": pixel_values,
        }
        # Encoders of a fixed length take no mask.
        infos = {info.name: info for info in self._session.inputs}
        if attention_mask is None and "attention_mask" in infos:
            states = input_features if input_ids is None else input_ids
            assert states is not None
            arguments["attention_mask"] = torch.ones(states.shape[:2], dtype=torch.int64)
        feeds = {
            name: x.numpy().astype(infos[name].numpy_dtype)
            for name, x in arguments.items()
            if x is not None and name in infos
        }
        (state, *_) = self._session.run(**feeds)
        result = BaseModelOutput(last_hidden_state=wide_tensor(state))
        if "attention_mask" in infos:
            # The decoder reads it too, and the states need not have its length: Speech2Text.
            result["attention_mask"] = arguments["attention_mask"]
        return result


def steps(
    model: SessionModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    random: torch.Generator | None = None,
    **inputs: Any,
) -> Iterator[torch.Tensor]:
    """Yield the next token of each sequence, int64 ``[batch]``, until all sequences have ended.

    This is the loop that ``custom_generate`` of transformers' ``generate`` takes, for greedy search
    and sampling. transformers' own passes tokens to a streamer, and gives no control to the caller.

    Args:
        model: The model.
        input_ids: The tokens to start from, int64 ``[batch, length]``.
        logits_processor: Changes the logits.
        stopping_criteria: Tells which sequences have ended.
        generation_config: The settings.
        random: Draws the samples.
        **inputs: Further arguments of the model.
    """
    decoding: Decoding = inputs[CACHE]
    # The last token is returned, but not read.
    decoding.reserve(generation_config.max_length - 1)
    if model.config.is_encoder_decoder:
        decoding.fix(encoded(inputs["encoder_outputs"], inputs.get("attention_mask")))
        decoding.extend(input_ids)
    else:
        decoding.extend(input_ids, inputs.get("attention_mask"))
    # Without such tokens, sequences that a criterion ends go on, as in transformers.
    pads = any(hasattr(one, "eos_token_id") for one in stopping_criteria)
    running = torch.ones(len(input_ids), dtype=torch.bool)
    try:
        while running.any():
            scores = decoding.logits()
            # A call of the list reads the signature of each processor again: 0.07 ms a token
            # for three of them (a Llama of two layers, one thread, AVX-512, 2026-11).
            for processor in logits_processor:
                scores = processor(decoding.ids, scores)
            if generation_config.do_sample:
                chances = torch.softmax(scores, dim=-1)
                tokens = torch.multinomial(chances, 1, generator=random).squeeze(1)
            else:
                # No softmax: the largest logit is also the largest probability.
                tokens = scores.argmax(dim=-1)
            if pads:
                # A batch runs until its last sequence ends: the others are padded meanwhile.
                tokens = torch.where(running, tokens, generation_config.pad_token_id)
            yield tokens
            decoding.extend(tokens[:, None])
            running &= ~stopping_criteria(decoding.ids, None)
    finally:
        # Also if the caller stops reading: closing the generator runs this.
        decoding.close()


def all_steps(model: SessionModel, input_ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """Return the tokens and those of all `steps`, int64 ``[batch, length]``."""
    new = [tokens[:, None] for tokens in steps(model, input_ids, **arguments)]
    return torch.cat([input_ids, *new], dim=1)


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """While active, torch's random numbers on the CPU are those of a seed; None draws one."""
    # ``generate`` of transformers draws from the global generator: the caller's must not move.
    # ``torch.manual_seed`` would also seed those of other devices.
    random = torch.default_generator
    before = random.get_state()
    try:
        random.seed() if seed is None else random.manual_seed(int(seed))
        yield
    finally:
        random.set_state(before)


def encoded(outputs: Any, mask: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Return what a decoder reads of an encoder in every step."""
    state = outputs.last_hidden_state
    mask = outputs.get("attention_mask") if mask is None else mask
    mask = torch.ones(state.shape[:2]) if mask is None else mask
    # That of Speech2Text's processor is int32.
    return {"encoder_hidden_states": state, "encoder_attention_mask": mask.to(torch.int64)}


def run(session: Session, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Run a session with arguments of a model, and return the outputs by name.

    Args:
        session: The session.
        arguments: Tensors and options by name.

    Raises:
        ModelSourceError: If a tensor is not an input of the file, and changes the result.
        InputError: If an input is missing, or has another shape than the file takes.
    """
    tensors = {name: x for name, x in arguments.items() if isinstance(x, torch.Tensor)}
    names = [info.name for info in session.inputs]
    for name, x in tensors.items():
        if name == "is_longer":  # CLAP reads it with fusion only, which is not exported
            continue
        default = _DEFAULTS.get(name, torch.ones_like if name.endswith("mask") else None)
        if name not in names and (default is None or not torch.equal(x, default(x))):
            raise ModelSourceError(
                f"the file has no input {name}, and computes as if it were not given; "
                f"its inputs are {', '.join(names)}"
            )
    feeds: dict[str, Any] = {name: tensors[name] for name in names if name in tensors}
    for name, default in _DEFAULTS.items():
        if name in names and "input_ids" in feeds:
            feeds.setdefault(name, default(feeds["input_ids"]))
    for info in session.inputs:
        if info.name in feeds:
            feeds[info.name] = as_input(feeds[info.name], info)
    outputs = session.run(**feeds)
    return {info.name: wide_tensor(outputs[info.name]) for info in session.outputs}
