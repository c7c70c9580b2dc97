"""The settings of an exported folder that generation uses, checked once when it is opened.

The files may have been edited, or come from anywhere: a value of another type would fail in the
middle of the generation, in a library, without the name of the setting.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict

from coreai_onnx.errors import GenerationError, failures_as
from coreai_onnx.huggingface.generation.adapters import adapter_inputs
from coreai_onnx.runtime.sessions.session import Session

GENERATION_CONFIG, CONFIG = "generation_config.json", "config.json"
_OF_WHISPER = "no_timestamps_token_id"
"""A setting that every ``generation_config.json`` of Whisper has."""
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len")
_LARGEST = 2**63 - 1
"""The largest int64."""
_MOST_SEQUENCES = 64
"""Beams and returned sequences, each of which multiplies the batch."""
_MOST_POSITIONS = 2**31 - 1


@dataclass(frozen=True)
class _Kind:
    """The values that a setting may have.

    Attributes:
        name: For messages.
        accepts: Whether a value is of this kind; None is accepted of every setting.
    """

    name: str
    accepts: Callable[[Any], bool]


def _whole(least: int, most: int = _LARGEST) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most  # bool is a subclass of int


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < math.inf and float(value) == value


_is_token = _whole(-1)  # some configurations write -1 for a token that does not exist


def _tokens(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_token, value))


def _token_table(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_whole(0), value.values()))


_TOKEN = _Kind("a token id", _is_token)
_TOKENS = _Kind("a list of token ids", _tokens)
_ONE_OR_MORE = _Kind(
    "a token id or a list of them", lambda x: _is_token(x) or (x != [] and _tokens(x))
)
_WORDS = _Kind(
    "a list of lists of token ids",
    lambda x: isinstance(x, list) and all(y and _tokens(y) for y in x),
)
_TABLE = _Kind("token ids by name", _token_table)
_LENGTH = _Kind("an integer", _whole(-_LARGEST))
_COUNT = _Kind("an integer of 0 or more", _whole(0))
# transformers makes a list of this length when the generation starts.
_NGRAM = _Kind("an integer from 0 to 1,024", _whole(0, 1024))
_NGRAM_LOOKUP = _Kind("an integer from 1 to 1,024", _whole(1, 1024))
_POSITIONS = _Kind(f"an integer from 1 to {_MOST_POSITIONS:,}", _whole(1, _MOST_POSITIONS))
_SEQUENCES = _Kind(f"an integer from 1 to {_MOST_SEQUENCES}", _whole(1, _MOST_SEQUENCES))
_NUMBER = _Kind("a number", _number)
_POSITIVE = _Kind("a number above 0", lambda x: _number(x) and x > 0)
_SHARE = _Kind("a number above 0 and at most 1", lambda x: _number(x) and 0 < x <= 1)
_SWITCH = _Kind("true or false", lambda x: isinstance(x, bool))
_TEXT = _Kind("text", lambda x: isinstance(x, str))
_ADAPTERS = _Kind(
    "the name of an adapter, or a list of names and None",
    lambda x: (
        isinstance(x, str)
        or (isinstance(x, list | tuple) and all(one is None or isinstance(one, str) for one in x))
    ),
)

_RULES: Mapping[str, _Kind] = MappingProxyType(
    {
        "repetition_penalty": _POSITIVE,
        "no_repeat_ngram_size": _COUNT,
        "encoder_no_repeat_ngram_size": _NGRAM,
        "forced_bos_token_id": _TOKEN,
        "forced_eos_token_id": _ONE_OR_MORE,
        "suppress_tokens": _TOKENS,
        "begin_suppress_tokens": _TOKENS,
        "bad_words_ids": _WORDS,
        "min_length": _COUNT,
        "min_new_tokens": _COUNT,
    }
)
"""The settings that say which tokens are chosen, by name, as in transformers' GenerationConfig."""
KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "eos_token_id": _ONE_OR_MORE,
        "pad_token_id": _TOKEN,
        "bos_token_id": _TOKEN,
        "decoder_start_token_id": _TOKEN,
        **_RULES,
        **dict.fromkeys(_CONTEXT, _LENGTH),
    }
)
"""The settings of every model, by name."""
_OPTION_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "max_new_tokens": _POSITIONS,
        "temperature": _POSITIVE,
        "top_p": _SHARE,
        "adapter": _ADAPTERS,
        "prompt_lookup_num_tokens": _NGRAM_LOOKUP,
        **dict.fromkeys(("num_beams", "num_return_sequences"), _SEQUENCES),
    }
)
"""The options of a call that transformers does not check, or late, by name."""
_OTHER_LOOPS = frozenset({"assistant_model", "prompt_lookup_num_tokens", "streamer"})
"""Options that the loops of transformers are needed for."""
SPEECH_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        _OF_WHISPER: _TOKEN,
        "prev_sot_token_id": _TOKEN,
        "lang_to_id": _TABLE,
        "task_to_id": _TABLE,
        "language": _TEXT,
        "task": _TEXT,
        "is_multilingual": _SWITCH,
        "return_timestamps": _SWITCH,
        "condition_on_prev_tokens": _SWITCH,
        "do_sample": _SWITCH,
        "max_length": _POSITIONS,
        "max_new_tokens": _POSITIONS,
        "max_target_positions": _POSITIONS,
        "max_initial_timestamp_index": _COUNT,
        "num_beams": _SEQUENCES,
        "num_return_sequences": _SEQUENCES,
        "temperature": _POSITIVE,
        **dict.fromkeys(
            ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold"), _NUMBER
        ),
    }
)
"""The settings of Whisper, which transformers reads, by name."""


class Options(TypedDict, total=False):
    """The options of `generate`, which describes them."""

    max_new_tokens: int
    attention_mask: Any
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    seed: int | None
    stop_ids: Sequence[int] | None
    num_beams: int | None
    length_penalty: float | None
    early_stopping: bool | str | None
    num_return_sequences: int | None
    assistant_model: Any
    prompt_lookup_num_tokens: int | None
    logits_processor: Any
    stopping_criteria: Any
    prefix_allowed_tokens_fn: Any
    streamer: Any
    language: str | Sequence[str] | None
    task: str | None
    return_timestamps: bool | None
    images: Any
    audio: Any
    adapter: str | Sequence[str | None] | None


@dataclass(frozen=True)
class Configuration:
    """What ``generation_config.json`` and ``config.json`` say about the generation.

    Attributes:
        stop_ids: Tokens that end a sequence.
        pad_id: The token for padding.
        start_id: The token that the decoder of a model with an encoder starts from.
        rules: Which tokens are chosen, by the names of transformers' GenerationConfig.
        context: The longest text that the model knows, in tokens; None if it is not known.
        is_speech: Whether the folder has the generation settings of Whisper.
    """

    stop_ids: tuple[int, ...]
    pad_id: int
    start_id: int
    rules: Mapping[str, Any]
    context: int | None
    is_speech: bool

    @classmethod
    def read(cls, folder: Path) -> Configuration:
        """Read the files of a folder; missing files are ignored.

        Raises:
            GenerationError: If a file cannot be read, or a setting has a value of another kind; the
                message names the file and the setting.
        """
        files = {name: _read(folder / name) for name in (GENERATION_CONFIG, CONFIG)}
        generation, config = files.values()
        # Whisper's own generation needs these settings; without them it is a decoder like others.
        is_speech = _OF_WHISPER in generation
        for name, settings in files.items():
            _check(folder / name, settings, {**KINDS, **(SPEECH_KINDS if is_speech else {})})

        def first(*names: str) -> Any:
            values = (one.get(name) for name in names for one in (generation, config))
            return next((value for value in values if value is not None), None)

        # Generation settings precede those of the model, as in transformers.
        stops = first("eos_token_id")
        stop_ids = tuple(stops) if isinstance(stops, list) else () if stops is None else (stops,)
        pad, start = first("pad_token_id"), first("decoder_start_token_id", "bos_token_id")
        context = first(*_CONTEXT)
        return cls(
            stop_ids,
            pad if pad is not None else stop_ids[0] if stop_ids else 0,
            0 if start is None else start,
            _rules(generation or config),  # as transformers chooses them
            context if context is not None and context > 0 else None,
            is_speech,
        )

    def check_vocabulary(self, size: Any, *, starts: bool) -> None:
        """Check the tokens that the model reads or is to generate.

        Args:
            size: The number of tokens that the model knows; nothing is checked if it is dynamic.
            starts: Whether the decoder starts from `start_id`.

        Raises:
            GenerationError: If the model does not know one of them.
        """
        forced: dict[str, Any] = {
            name: self.rules.get(name) for name in ("forced_bos_token_id", "forced_eos_token_id")
        }
        forced |= {"decoder_start_token_id": self.start_id} if starts else {}
        # -1 stands for no padding token.
        forced["pad_token_id"] = max(self.pad_id, 0)
        for name, value in forced.items():
            tokens = value if isinstance(value, list) else [] if value is None else [value]
            if isinstance(size, int) and not all(0 <= token < size for token in tokens):
                raise GenerationError(
                    f"{name} is {value}, and the model has the tokens 0 to {size - 1}\n"
                    f"  correct {GENERATION_CONFIG} of the folder"
                )


def generation_settings(
    rules: Mapping[str, Any], stop_ids: Sequence[int], pad_id: int
) -> dict[str, Any]:
    """Return the settings of transformers' ``GenerationConfig`` for rules and special tokens."""
    return {**rules, "eos_token_id": list(stop_ids) or None, "pad_token_id": pad_id}


def checked_options(options: Options, session: Session) -> dict[str, Any]:
    """Return the options that have a value.

    Raises:
        GenerationError: If there is no such option, a value is out of range, or the model takes no
            adapters.
    """
    if unknown := sorted(options.keys() - Options.__annotations__.keys()):
        names = ", ".join(Options.__annotations__)
        raise GenerationError(f"there is no option {unknown[0]!r}; there are {names}")
    if fault := option_fault(options):
        raise GenerationError(fault)
    if options.get("adapter") is not None:
        adapter_inputs(session)
    return {name: value for name, value in options.items() if value is not None}


def is_stepwise(options: Mapping[str, Any]) -> bool:
    """Return whether each step gives the next token of each sequence."""
    return options.get("num_beams", 1) == 1 and not _OTHER_LOOPS.intersection(options)


def option_fault(options: Mapping[str, Any]) -> str:
    """Return what is wrong with the first option of a call that has no valid value, or nothing."""
    for name, kind in _OPTION_KINDS.items():
        value = options.get(name)
        if value is not None and not kind.accepts(value):
            return f"{name}={value!r:.80} must be {kind.name}"
    return ""


def _rules(settings: Mapping[str, Any]) -> dict[str, Any]:
    rules = {name: settings[name] for name in _RULES if settings.get(name) is not None}
    if "repetition_penalty" in rules:  # transformers takes no integer
        rules["repetition_penalty"] = float(rules["repetition_penalty"])
    return rules


def _check(file: Path, settings: Mapping[str, Any], kinds: Mapping[str, _Kind]) -> None:
    for name, kind in kinds.items():
        value = settings.get(name)
        # None means that a setting is not given; transformers writes it for many.
        if value is not None and not kind.accepts(value):
            raise GenerationError(
                f"{file}: {name} is {value!r:.80}, and must be {kind.name}\n"
                "  correct the file, or export the model again"
            )


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    with failures_as(GenerationError, f"cannot read {file}"):
        content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise GenerationError(f"{file}: is a JSON {type(content).__name__}, not an object")
    return content
