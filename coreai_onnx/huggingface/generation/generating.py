"""Generation of text: from a folder, a program or a session to tokens."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import torch

from coreai_onnx.errors import GenerationError, failures_as
from coreai_onnx.huggingface.generation.adapters import (
    Adapter,
    adapter_of,
    read_adapter,
    with_adapters,
    write_adapter,
)
from coreai_onnx.huggingface.generation.configuration import (
    Configuration,
    Options,
    checked_options,
    generation_settings,
    is_stepwise,
)
from coreai_onnx.huggingface.generation.decoding import check_decoder
from coreai_onnx.huggingface.generation.engine import Engine, Settings
from coreai_onnx.huggingface.generation.media_model import open_media, pictures_media
from coreai_onnx.huggingface.generation.media_prompts import MEDIA_OPTIONS, Media
from coreai_onnx.huggingface.generation.prompts import (
    Prompt,
    read_features,
    read_prompt,
    read_tokenizer,
)
from coreai_onnx.huggingface.generation.session_model import (
    SAMPLING,
    SessionModel,
    all_steps,
    seeded,
    steps,
)
from coreai_onnx.huggingface.generation.speech import SPEECH_OPTIONS, Speech
from coreai_onnx.huggingface.generation.streamed_text import pieces
from coreai_onnx.model.files.new_files import file_fault
from coreai_onnx.model.files.program_files import (
    EMBEDDING_FILE,
    ENCODER_FILE,
    MERGED_FILE,
    MODEL_FILE,
)
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.sessions.settings import Transport
from coreai_onnx.runtime.sessions.sources import HasModel
from coreai_onnx.runtime.tensors.outputs import Array
from coreai_onnx.targets.providers import Choice

_NEW_TOKENS = 64
_OWN = ("seed", "stop_ids", "adapter")
"""Options that transformers does not have."""


@dataclass(eq=False)
class LanguageModel:
    """A decoder that is ready to generate, with its tokenizer.

    Attributes:
        session: The session of the decoder, with inputs for adapters from the first adapter on.
        tokenizer: The tokenizer of transformers, or None.
        stop_ids: Tokens that end a sequence.
        pad_id: The token for padding.
        encoder: The session of an encoder, or None; with one, tokens are the decoder's alone.
        start_id: The token that the decoder of a model with an encoder starts from.
        rules: What the model's configuration says about its tokens, by the names of transformers'
            GenerationConfig.
        speech: Whisper's own generation, of a folder with its ``generation_config.json``.
        context: The longest text that the model knows, in tokens; None if it is not known.
        media: The model with its encoders of pictures or sound, of a folder that has them.
        adapters: The adapters that `load_adapter` has read, by name; ``del`` unloads one.
    """

    session: Session
    tokenizer: Any = None
    stop_ids: tuple[int, ...] = ()
    pad_id: int = 0
    encoder: Session | None = None
    start_id: int = 0
    rules: Mapping[str, Any] = field(default_factory=dict)
    speech: Speech | None = None
    context: int | None = None
    media: Media | None = None
    adapters: dict[str, Adapter] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        folder: str | PathLike[str],
        *,
        kernels: bool | None = None,
        threads: int | None = None,
        packed_weights: str | PathLike[str] | None = None,
        provider: Choice | None = None,
        group: str | Transport | None = None,
    ) -> LanguageModel:
        """Open a folder that `export_model` wrote.

        Args:
            folder: The folder.
            kernels: As for `session`.
            threads: As for `session`.
            packed_weights: As for `session`; all files of the folder share it.
            provider: As for `session`; also for the encoder.
            group: As for `session`, of the folder of a rank.

        Raises:
            GenerationError: If the folder has no ``model.onnx``, the model is not a decoder, its
                tokenizer cannot be read, or a setting of its configuration has a wrong type.
            SessionError: If the model cannot be opened.
        """
        path = Path(folder)
        # Both files make an encoder and a decoder; one alone is left over from something else.
        embeds = not (file_fault(path / EMBEDDING_FILE) or file_fault(path / MERGED_FILE))
        encodes = not (file_fault(path / ENCODER_FILE) or file_fault(path / MERGED_FILE))
        if not (encodes or embeds) and file_fault(path / MODEL_FILE):
            is_folder = file_fault(path) == "is a folder"
            what = f"there is no {MODEL_FILE}" if is_folder else "no such folder"
            raise GenerationError(f"{path}: {what}; export the model with coreai_onnx.export_model")
        settings = Configuration.read(path)  # before the session, which takes longer to open
        how: dict[str, Any] = {"kernels": kernels, "threads": threads, "providers": provider}
        how, merged = {**how, "packed_weights": packed_weights, "group": group}, encodes or embeds
        session = Session(path / (MERGED_FILE if merged else MODEL_FILE), adapters=merged, **how)
        # A model of another kind would fail in the first step, with an error about missing inputs.
        check_decoder(session)
        settings.check_vocabulary(session.outputs[0].dims[-1], starts=encodes)
        encoder = speech = media = None
        if encodes:
            encoder = Session(path / ENCODER_FILE, **how)
            speech = Speech(path, encoder, session) if settings.is_speech else None
            media = pictures_media(path, session, encoder, settings)
        media = open_media(path, session, settings, how, encoder) if embeds else media
        tokens = settings.stop_ids, settings.pad_id, encoder, settings.start_id, settings.rules
        return cls(session, read_tokenizer(path), *tokens, speech, settings.context, media)

    def as_transformers(self) -> SessionModel:
        """Return a model of transformers that runs in the sessions.

        Its ``generate`` is that of transformers, with all arguments; the options that are not given
        are those of the folder's ``generation_config.json``, as far as `generate` uses them.
        """
        if self.media is not None:
            return self.media.model  # type: ignore[no-any-return]  # a class made on opening
        settings = generation_settings(self.rules, self.stop_ids, self.pad_id)
        if self.encoder is not None:
            settings["decoder_start_token_id"] = self.start_id
        with failures_as(GenerationError, "a setting of the generation is not valid"):
            return SessionModel(self.session, settings, self.encoder)

    def engine(self, **settings: Unpack[Settings]) -> Engine:
        """Return an engine for many requests at once; see `Engine`."""
        return Engine(self, **settings)

    def load_adapter(self, folder: str | PathLike[str], name: str | None = None) -> None:
        """Read an adapter of LoRA that peft saved, for the option ``adapter`` of `generate`.

        Args:
            folder: The folder, with ``adapter_config.json`` and ``adapter_model.safetensors``.
            name: Its name, by default that of the folder; an adapter of this name is replaced.

        Raises:
            GenerationError: If the model was exported without ``lora=True``, a file is missing or
                broken, or the adapter is of another kind or for another model; none is replaced.
        """
        self._open_adapters()
        self.adapters[name or Path(folder).resolve().name] = read_adapter(folder, self.session)

    def save_adapter(self, name: str, file: str | PathLike[str]) -> None:
        """Write an adapter as a file that ``onnxruntime.LoraAdapter`` loads.

        Args:
            name: The name of a loaded adapter, or its folder.
            file: The file, by convention ``*.onnx_adapter``; it is replaced.

        Raises:
            GenerationError: If there is no such adapter.
            SaveError: If the file cannot be written.
        """
        self._open_adapters()
        write_adapter(adapter_of(name, self.adapters, self.session), Path(file))

    def _open_adapters(self) -> None:
        """Open the decoder with its inputs for adapters, unless it is."""
        session = self.session.with_adapters()
        if session is not self.session:
            self.session = session
            self.__dict__.pop("transformers_model", None)

    def _checked(self, options: Options) -> dict[str, Any]:
        if options.get("adapter") is not None:
            self._open_adapters()
        return checked_options(options, self.session)

    def _adapted(self, asked: Prompt, checked: Mapping[str, Any]) -> SessionModel:
        """Return the model of transformers with the adapters of a call."""
        if (names := checked.get("adapter")) is None:
            return self.transformers_model
        # Beams and candidates are rows next to each other.
        copies = max(checked.get("num_beams", 1), checked.get("num_return_sequences", 1))
        session = with_adapters(self.session, self.adapters, names, (len(asked.ids), copies))
        return replace(self, session=session).as_transformers()

    def generate(self, prompt: Any, **options: Unpack[Options]) -> str | list[str] | Array:
        """Generate; see :func:`generate`."""
        checked = self._checked(options)
        if self.speech is not None:
            return self.speech.generate(prompt, checked)
        asked, arguments = self.arguments(prompt, checked)
        model = self._adapted(asked, checked)
        # The loop of transformers takes 0.2 to 0.3 ms longer for a token (a Llama of two layers and
        # one of 2.9 million parameters, 0.7 and 1.4 ms a token, one thread, AVX-512, 2026-11).
        custom = all_steps if is_stepwise(checked) and self.media is None else None
        failures = failures_as(GenerationError, "the generation failed")
        with failures, torch.no_grad(), seeded(checked.get("seed")):
            sequences = model.generate(**arguments, custom_generate=custom)
        is_single = asked.is_single and len(sequences) == 1
        if not asked.is_text:
            ids: Array = sequences.numpy()
            return ids[0] if is_single else ids
        start = asked.ids.shape[1] if self.encoder is None else 1
        texts = [self.text(row) for row in sequences[:, start:]]
        return texts[0] if is_single else texts

    def stream(self, prompt: Any, **options: Unpack[Options]) -> Iterator[Any]:
        """Generate step by step; see :func:`stream`."""
        checked = self._checked(options)
        if self.speech is not None:
            # Timestamps decide where the next window begins: tokens are final at its end.
            raise GenerationError("Whisper generates whole windows of audio; use generate")
        if self.media is not None:
            raise GenerationError("a model of pictures or sound streams by generate(…, streamer=…)")
        if not is_stepwise(checked):
            raise GenerationError("beams and candidates are final only at the end; use generate")
        asked, arguments = self.arguments(prompt, checked)
        model = self._adapted(asked, checked)
        with failures_as(GenerationError, "the generation failed"):
            random = torch.Generator()
            # A generator starts with the same fixed seed in each process.
            random.manual_seed(checked["seed"]) if "seed" in checked else random.seed()
            custom = functools.partial(steps, random=random)
            tokens = model.generate(**arguments, custom_generate=custom)
        return pieces(tokens, self.text if asked.is_text else None, is_single=asked.is_single)

    @functools.cached_property
    def transformers_model(self) -> SessionModel:
        """The result of `as_transformers`, once for all calls."""
        return self.as_transformers()

    def arguments(self, prompt: Any, checked: Mapping[str, Any]) -> tuple[Prompt, dict[str, Any]]:
        """Return a prompt, and the arguments of transformers' ``generate``."""
        for name in SPEECH_OPTIONS:
            if name in checked:
                raise GenerationError(
                    f"{name} is an option of Whisper; the model is none, or its folder has no "
                    "generation_config.json of Whisper"
                )
        options = {name: x for name, x in checked.items() if name not in _OWN}
        media = {name: options.pop(name) for name in MEDIA_OPTIONS if name in options}
        if media and self.media is None:
            raise GenerationError(f"the model has no encoder of {next(iter(media))}")
        mask = options.pop("attention_mask", None)
        name = self.transformers_model.main_input_name
        if media and self.media is not None:
            asked, further = self.media.read(prompt, media)
            options |= further
        elif name == "input_features":
            asked = read_features(prompt)
        else:
            # An encoder numbers positions from the left: padding belongs on the right.
            side: Any = "left" if self.encoder is None else "right"
            asked = read_prompt(prompt, self.tokenizer, mask=mask, pad_id=self.pad_id, side=side)
        if SAMPLING.intersection(options):
            options = {"do_sample": True} | options
        if options.get("do_sample"):
            # The defaults of transformers leave 50 tokens to choose from.
            options = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} | options
        assistant = options.get("assistant_model")
        if assistant is not None and not isinstance(assistant, torch.nn.Module):
            options["assistant_model"] = language_model(assistant).as_transformers()
        ends = checked.get("stop_ids", self.stop_ids)
        arguments = {
            name: asked.ids,
            "attention_mask": asked.mask,
            "max_new_tokens": _NEW_TOKENS,
            "eos_token_id": list(ends) or None,
        }
        return asked, arguments | options

    def text(self, tokens: Any) -> str:
        """Return the text of tokens."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))


Model = str | PathLike[str] | Session | HasModel | LanguageModel
"""What generates: an exported folder, a session, a program, or an open `LanguageModel`."""


def generate(
    model: Model, prompt: Any, *, provider: Choice | None = None, **options: Unpack[Options]
) -> str | list[str] | Array:
    """Generate text or tokens with a decoder.

    ```python
    coreai_onnx.generate("my_llama_onnx", "Once upon a time", max_new_tokens=100)
    coreai_onnx.generate(session, [[1, 5, 9], [1, 7]], temperature=0.7, top_p=0.9, seed=0)
    ```

    Args:
        model: A folder that `export_model` wrote, a program, a session, or a `LanguageModel`. The
            states of a session do not change. A folder is opened at each call: for several calls
            use `LanguageModel.open`.
        prompt: Text or a list of texts; or token ids, as a list, array or tensor of one or two
            axes. Shorter prompts of a batch are padded. For a speech model, a spectrogram
            ``[batch, bins, frames]``.
        provider: The execution provider that a folder or a program runs on, as for `session`.
        **options: ``max_new_tokens`` (64); ``attention_mask`` for ids that are padded already;
            ``temperature``, ``top_k``, ``top_p`` and ``min_p``, of which any one turns on sampling,
            as ``do_sample`` does; ``seed`` of the sampling; ``stop_ids``, by default those of the
            folder's configuration. As in transformers: ``repetition_penalty``,
            ``no_repeat_ngram_size``, ``num_beams``, ``length_penalty``, ``early_stopping``,
            ``num_return_sequences``, ``assistant_model`` (also a folder or a `LanguageModel`),
            ``prompt_lookup_num_tokens``, ``logits_processor``, ``stopping_criteria``,
            ``prefix_allowed_tokens_fn``, ``streamer``; ``adapter``, a name of
            `LanguageModel.load_adapter` or the folder of an adapter, or a list with one or None for
            each prompt; for Whisper ``language``, ``task`` and
            ``return_timestamps``; for a model of pictures or sound ``images`` and ``audio``, lists
            of what the processor takes (sounds perhaps with their ``sampling_rate``), or the inputs
            that it returned, for a prompt of token ids.

    Returns:
        For text the new text, without the prompt, for a list of texts a list. For token ids the
        prompt and the new tokens, int64 ``[length]`` or ``[batch, length]``; a sequence that ends
        earlier is padded. A model with an encoder returns the tokens of its decoder; Whisper those
        that follow the ones that its decoder starts from.

    Raises:
        GenerationError: If the model is not a decoder, the prompt is empty, does not fit the
            model's cache, or is text without a tokenizer, or an option is out of range.
        SessionError: If the model cannot be opened or run.
    """
    return language_model(model, provider).generate(prompt, **options)


def stream(
    model: Model, prompt: Any, *, provider: Choice | None = None, **options: Unpack[Options]
) -> Iterator[Any]:
    """Generate step by step; the arguments are those of `generate`.

    Returns:
        An iterator: for text the new text of each step (a list for a list of texts), for token ids
        the new token, an int or int64 ``[batch]``.

    Raises:
        GenerationError: As `generate`.
        SessionError: As `generate`.
    """
    return language_model(model, provider).stream(prompt, **options)


def language_model(
    model: Model, provider: Choice | None = None, *, kernels: bool | None = None
) -> LanguageModel:
    """Return a model as a `LanguageModel`.

    Args:
        model: The model.
        provider: The execution provider to open it on.
        kernels: As for `session`.

    Raises:
        GenerationError: If it is not one of the kinds of `Model`, or it is open already and there
            is a provider, or kernels are chosen.
    """
    if isinstance(model, LanguageModel | Session):
        if provider is not None or kernels is not None:
            raise GenerationError(
                f"provider and kernels are chosen when a model is opened, and this "
                f"{type(model).__name__} is open: give them to coreai_onnx.session or "
                "LanguageModel.open"
            )
        return LanguageModel(model) if isinstance(model, Session) else model
    if isinstance(model, HasModel):
        return LanguageModel(Session(model, kernels=kernels, providers=provider))
    if isinstance(model, str | PathLike):
        return LanguageModel.open(model, kernels=kernels, provider=provider)
    raise GenerationError(
        f"a {type(model).__name__} does not generate; give a folder, a program or a session"
    )
