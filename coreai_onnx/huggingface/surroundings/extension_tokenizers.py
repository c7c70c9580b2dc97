"""Tokenizers whose algorithm an operator of onnxruntime-extensions has: BPE and Unigram."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.surroundings.token_graphs import Flat
from coreai_onnx.huggingface.transformers_names import sentencepiece_model

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
"""Types of pieces of SentencePiece."""
_UNIGRAM, _BPE = 1, 2

_PRIVATE = "\U0010fffd"
"""Names of pieces that no text has."""

_SENTENCEPIECE = """
sentencepiece (string[N] text) => (int64[T] ids, int64[N] lengths)
<int32[T] pieces, int64[B] bounds, int32[T] offsets> {
  SPACES
  pieces, bounds, offsets = ai.onnx.contrib.SentencepieceTokenizer
    (SPACED, nothing, no_alpha, no, no, no, no)
  ids = Cast <to=7> (pieces)
  upper = Slice (bounds, one, many)
  lower = Slice (bounds, zero, minus_one)
  lengths = Sub (upper, lower)
}
"""
_REPLACED = "spaced = ai.onnx.contrib.StringRegexReplace (text, pattern, rewrite)"
_WHITE = (
    r"[\x{9}-\x{D}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}"
    r"\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}]"
)
"""What Rust's ``char::is_whitespace`` accepts, for RE2: all of it separates words."""
# The column of zeros is for texts that are all empty: onnxruntime 1.31 sums no columns to none.
_BYTE_LEVEL = """
byte_level (string[N] text) => (int64[T] ids, int64[N] lengths)
<int64[N,L] padded, int64[N,L] mask> {
  padded, mask = ai.onnx.contrib.HfJsonTokenizer (text)
  n = Shape (text)
  column = Concat <axis=0> (n, one)
  zeros = Expand (zero, column)
  mask_or_zero = Concat <axis=1> (mask, zeros)
  lengths = ReduceSum <keepdims=0> (mask_or_zero, minus_one)
  is_kept = Cast <to=9> (mask)
  padded_flat = Reshape (padded, minus_one)
  kept_flat = Reshape (is_kept, minus_one)
  ids = Compress <axis=0> (padded_flat, kept_flat)
}
"""


def sentencepiece(settings: Mapping[str, Any]) -> Flat:
    """Return the graph of a Unigram tokenizer, or of BPE with ``▁`` for spaces.

    Its vocabulary becomes a model of SentencePiece, whose pieces have the same numbers.

    Args:
        settings: The content of ``tokenizer.json``.

    Raises:
        ModelSourceError: If it has no unknown token.
    """
    model = settings["model"]
    proto = sentencepiece_model()
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    unigram = model["type"] == "Unigram"
    pieces = list(model["vocab"] if unigram else _bpe_pieces(model))
    unknown = model["unk_id"] if unigram else model["vocab"].get(model["unk_token"] or "<unk>")
    if unknown is None:
        raise ModelSourceError("a tokenizer without a token for what is unknown is not supported")
    added = {one["id"]: one["content"] for one in settings["added_tokens"]}
    pieces += [("", 0.0)] * (max(added, default=-1) + 1 - len(pieces))
    for number, (text, score) in enumerate(pieces):
        # A C string of the operator ends at NUL, so that no text contains these pieces.
        content = "" if "\0" in text else added.get(number, text)
        is_byte = model.get("byte_fallback") and len(content) == 6 and content.startswith("<0x")
        kind = _BYTE if is_byte else _USER_DEFINED if number in added else _NORMAL
        kind = _UNKNOWN if number == unknown else kind if content else _UNUSED
        proto.pieces.add(piece=content or f"{_PRIVATE}{number}", score=score, type=kind)
    trainer.model_type = _UNIGRAM if unigram else _BPE
    trainer.byte_fallback = bool(model.get("byte_fallback"))
    trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id = unknown, -1, -1, -1
    trainer.unk_piece = pieces[unknown][0]
    texts = json.dumps([settings["normalizer"], settings["pre_tokenizer"]])
    charsmap = next(_charsmaps(settings["normalizer"]), None)
    normalizer.precompiled_charsmap = base64.b64decode(charsmap) if charsmap else b""
    normalizer.remove_extra_whitespaces = "{2,}" in texts or "WhitespaceSplit" in texts
    splits = "WhitespaceSplit" in texts
    # Metaspace puts a space in front unless there is one, SentencePiece does so always.
    replaced = (_WHITE, " ") if splits else (r"^([^ ▁])", r" \1") if "Metaspace" in texts else None
    normalizer.add_dummy_prefix = splits or '"Prepend"' in texts
    normalizer.escape_whitespaces = True
    constants = {
        "nothing": [0], "no_alpha": np.zeros(1, np.float32), "no": [False], "zero": [0],
        "one": [1], "many": [np.iinfo(np.int64).max], "minus_one": [-1],
    }  # fmt: skip
    # The operator decodes base64; protobuf's own text cannot hold arbitrary bytes.
    serialized = base64.b64encode(proto.SerializeToString()).decode()
    nodes = _SENTENCEPIECE.replace("SPACES", _REPLACED if replaced else "")
    nodes = nodes.replace("SPACED", "spaced" if replaced else "text")
    constants |= {"pattern": replaced[:1], "rewrite": replaced[1:]} if replaced else {}
    return Flat(nodes, constants, {"pieces": {"model": serialized}})


def _bpe_pieces(model: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield pieces and scores: SentencePiece merges the pair whose result has the best score."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(model["merges"]):
        first, second = pair.split(" ") if isinstance(pair, str) else pair
        ranks.setdefault(first + second, rank)
    texts = {number: text for text, number in model["vocab"].items()}
    for number in range(max(texts) + 1):
        text = texts.get(number, "")
        yield text, -float(ranks.get(text, len(ranks)))


def _charsmaps(normalizer: Mapping[str, Any] | None) -> Iterator[str]:
    for one in (normalizer or {}).get("normalizers", [normalizer] if normalizer else []):
        if one["type"] == "Precompiled":
            yield one["precompiled_charsmap"]


def byte_level(settings: Mapping[str, Any]) -> Flat:
    """Return the graph of a BPE of bytes, as that of GPT-2 or Llama 3.

    Args:
        settings: The content of ``tokenizer.json``.

    Raises:
        ModelSourceError: If it has a normalizer.
    """
    if settings["normalizer"] is not None:
        raise ModelSourceError(
            f"a byte-level BPE with the normalizer {settings['normalizer']['type']} is not "
            "supported"
        )
    # The operator reads special tokens of templates and classes; these are added later, and the
    # class GPT2Tokenizer has none. Other classes lose the last character of some texts.
    plain = {**settings, "post_processor": None, "truncation": None, "padding": None}
    config = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": False, "add_eos_token": False}
    contents = {"tokenizer_vocab": json.dumps(plain), "tokenizer_config": json.dumps(config)}
    constants = {"zero": [0], "one": [1], "minus_one": [-1]}
    return Flat(_BYTE_LEVEL, constants, {"padded": contents})
