"""WordPiece as a graph of ONNX operators: equal to the tokenizer, in every runtime.

``BertTokenizer`` of onnxruntime-extensions does not decompose accents, takes one text at a time,
ignores special tokens in a text, and keeps the beginning of a word that has no tokens. The only
operator here that is not ONNX's is onnxruntime's own ``Tokenizer``, which splits texts into
characters.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import category

import numpy as np

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.huggingface.surroundings.token_graphs import Flat

_NORMALIZERS = ("BertNormalizer", "Lowercase", "StripAccents", "NFD")
"""Normalizers that change each character on its own, up to an order that accents lose."""
_NOTHING, _SPACE, _UNKNOWN = 0, 1, 2
"""Numbers of characters: none, a break between words, and those that no piece contains."""
_RANGES = (range(0xD800), range(0xE000, 0x40000), range(0xE0000, 0xE01F0))
"""Code points with a normalization: the others are private or not assigned."""
_MARK = "\N{SNOWMAN}"
"""A character that no normalization changes or makes of another one."""

# ONNX does not know Tokenizer, and its inference of LabelEncoder needs the type of the characters.
# Results of rows, in the order of the characters. "y" are the characters after normalization, as
# numbers; 0 is none, 1 a space, and those from iso[0] on are words of their own.
_TEXT = """
wordpiece (string[N] text) => (int64[T] ids, int64[N] lengths)
<string[N,L] chars> {
  chars = com.microsoft.Tokenizer <mark=0, mincharnum=1, pad_value="", separators=[""]> (text)
  raw_chars = ai.onnx.ml.LabelEncoder (chars)
  shape = Shape (chars)
  n = Slice (shape, zero, one)
  column = Concat <axis=0> (n, one)
  spaces = Expand (space, column)
  lines = Concat <axis=1> (spaces, raw_chars)
  line_shape = Shape (lines)
  n_scalar = Squeeze (n)
  numbers = Range (zero_scalar, n_scalar, one_scalar)
  numbers_column = Unsqueeze (numbers, one)
  row_of_all = Expand (numbers_column, line_shape)
  lines_flat = Reshape (lines, minus_one)
  rows_flat = Reshape (row_of_all, minus_one)
  is_char = Greater (lines_flat, zero_scalar)
  raw = Compress <axis=0> (lines_flat, is_char)
  rows_raw = Compress <axis=0> (rows_flat, is_char)
  SPECIAL
  expanded = Gather (table, SPLIT)
  expanded_shape = Shape (expanded)
  rows_column = Unsqueeze (rows_raw, one)
  rows_wide = Expand (rows_column, expanded_shape)
  expanded_flat = Reshape (expanded, minus_one)
  rows_wide_flat = Reshape (rows_wide, minus_one)
  there = Greater (expanded_flat, zero_scalar)
  y_all = Compress <axis=0> (expanded_flat, there)
  rows_all = Compress <axis=0> (rows_wide_flat, there)
  is_space = Equal (y_all, one_scalar)
  is_alone = GreaterOrEqual (y_all, alone)
  ends_word = Or (is_space, is_alone)
  count = Shape (y_all)
  ends_after = Concat <axis=0> (yes, ends_word)
  after_break = Slice (ends_after, zero, count)
  may_start = Or (after_break, is_alone)
  no_space = Not (is_space)
  starts_all = And (may_start, no_space)
  y = Compress <axis=0> (y_all, no_space)
  rows = Compress <axis=0> (rows_all, no_space)
  starts = Compress <axis=0> (starts_all, no_space)
  starts_int = Cast <to=7> (starts)
  words_one = CumSum (starts_int, zero_scalar)
  word = Sub (words_one, one_scalar)
  size = Shape (y)
  size_scalar = Squeeze (size)
  positions = Range (zero_scalar, size_scalar, one_scalar)
  y_end = Concat <axis=0> (y, minus_one)
  word_end = Concat <axis=0> (word, minus_one)
  root = Where (starts, zero_scalar, one_scalar)
  no_tokens = Expand (minus_one, size)
  no_lengths = Expand (zero, size)
  last_state, token, length = Loop (longest, yes_scalar, root, no_tokens, no_lengths) WALK
  next_at = Add (positions, length)
  no_match = Equal (length, zero_scalar)
  stuck = Where (no_match, size_scalar, next_at)
  next_word = Gather (word_end, stuck)
  same_next = Equal (next_word, word)
  hop = Where (same_next, stuck, size_scalar)
  hop_0 = Concat <axis=0> (hop, size)
  reached_0 = Concat <axis=0> (starts_int, zero)
  HOPS
  reached_ends = Slice (REACHED, zero, size)
  is_reached = Cast <to=9> (reached_ends)
  fails = And (is_reached, no_match)
  ones = Expand (one, size)
  zeros = Expand (zero, size)
  word_sizes = ScatterElements <axis=0, reduction="add"> (zeros, word, ones)
  too_long = Greater (word_sizes, longest_word)
  fails_int = Cast <to=7> (fails)
  fails_word = ScatterElements <axis=0, reduction="max"> (zeros, word, fails_int)
  fails_bool = Cast <to=9> (fails_word)
  unknown_word = Or (fails_bool, too_long)
  is_unknown = Gather (unknown_word, word)
  chosen = Where (is_unknown, unknown, token)
  is_known = Not (is_unknown)
  may_emit = Or (starts, is_known)
  emitted = And (is_reached, may_emit)
  ids = Compress <axis=0> (chosen, emitted)
  emitted_int = Cast <to=7> (emitted)
  no_ids = Expand (zero, n)
  lengths = ScatterElements <axis=0, reduction="add"> (no_ids, rows, emitted_int)
}
"""
# Special tokens become one character each. A window at each place is compared with all of them.
_SPECIAL = """
  raw_size = Shape (raw)
  raw_size_scalar = Squeeze (raw_size)
  across = Range (zero_scalar, raw_size_scalar, one_scalar)
  across_column = Unsqueeze (across, one)
  places = Add (across_column, window)
  raw_right = Pad (raw, right, minus_one_scalar)
  windows = Gather (raw_right, places)
  windows_each = Unsqueeze (windows, one)
  equal = Equal (windows_each, patterns)
  fits = Or (equal, any_row)
  fits_int = Cast <to=2> (fits)
  fit = ReduceMin <keepdims=0> (fits_int, minus_one)
  which = ArgMax <axis=-1, keepdims=0> (fit)
  is_there = ReduceMax <keepdims=0> (fit, minus_one)
  begins = Cast <to=9> (is_there)
  span_there = Gather (spans, which)
  span = Where (begins, span_there, zero_scalar)
  span_left = Pad (span, left, zero_scalar)
  spans_before = Gather (span_left, places)
  reaches = Greater (spans_before, reach)
  reaches_int = Cast <to=2> (reaches)
  covered_int = ReduceMax <keepdims=0> (reaches_int, minus_one)
  covered = Cast <to=9> (covered_int)
  special_row = Add (which, one_scalar)
  begun = Where (begins, special_row, raw)
  split = Where (covered, zero_scalar, begun)
"""
_HOP = """
  reached_{1} = ScatterElements <axis=0, reduction="max"> (reached_{0}, hop_{0}, reached_{0})
  hop_{1} = Gather (hop_{0}, hop_{0})
"""
# For every character, the longest piece that begins with it: a walk through both tries at once.
_WALK = """
<body = walk (int64 step, bool alive_before, int64[P] state, int64[P] best, int64[P] best_length)
  => (bool alive, int64[P] next_state, int64[P] next_best, int64[P] next_length) {
    place = Add (positions, step)
    place_in = Min (place, size_scalar)
    char = Gather (y_end, place_in)
    word_there = Gather (word_end, place_in)
    same_word = Equal (word_there, word)
    first_key = Mul (state, classes)
    key = Add (first_key, char)
    key_or_none = Where (same_word, key, minus_one)
    next_state = ai.onnx.ml.LabelEncoder (key_or_none)
    walks = GreaterOrEqual (next_state, zero_scalar)
    state_in = Max (next_state, zero_scalar)
    piece = Gather (pieces, state_in)
    is_piece = GreaterOrEqual (piece, zero_scalar)
    matches = And (walks, is_piece)
    next_best = Where (matches, piece, best)
    steps = Add (step, one_scalar)
    next_length = Where (matches, steps, best_length)
    walks_int = Cast <to=7> (walks)
    any_or_none = ReduceSum <keepdims=0> (walks_int)
    alive = Cast <to=9> (any_or_none)
}>
"""


@dataclass(frozen=True)
class _Alphabet:
    """Characters as rows of a table, and what they become as numbers.

    Attributes:
        of: The number of each character of the pieces.
        alone: The first number of those that are words of their own.
        special: The numbers of the special tokens, the last ones.
        table: ``[rows, width]``: the numbers of the characters that a row becomes.
        rows: The row of each character; others have the last row.
    """

    of: Mapping[str, int]
    alone: int
    special: range
    table: np.ndarray
    rows: Mapping[str, int]

    @property
    def classes(self) -> int:
        """The count of numbers."""
        return self.special.stop


def wordpiece(backend: Any, settings: Mapping[str, Any]) -> Flat:
    """Return the graph of a WordPiece tokenizer: ``text`` to ``ids`` and ``lengths``.

    Args:
        backend: The tokenizer, of the library ``tokenizers``.
        settings: Its content as in ``tokenizer.json``.

    Raises:
        ModelSourceError: If it has a part that the graph has no form for.
    """
    _check(settings)
    model = settings["model"]
    special = {one["content"]: one["id"] for one in settings["added_tokens"]}
    vocabulary = {k: v for k, v in model["vocab"].items() if k not in special}
    alphabet = _alphabet(backend, {c for piece in vocabulary for c in piece}, list(special))
    edges, pieces = _tries(vocabulary, special, model["continuing_subword_prefix"], alphabet)
    longest = int(model["max_input_chars_per_word"])
    hops = max(longest, 2).bit_length()
    return Flat(
        _TEXT.replace("WALK", _WALK).replace("SPECIAL", _SPECIAL if special else "").replace(
            "HOPS", "".join(_HOP.format(i, i + 1) for i in range(hops))
        ).replace("SPLIT", "split" if special else "raw").replace("REACHED", f"reached_{hops}"),
        {
            "table": alphabet.table, "pieces": pieces,
            "alone": np.int64(alphabet.alone), "classes": np.int64(alphabet.classes),
            "unknown": np.int64(model["vocab"][model["unk_token"]]),
            "longest": np.int64(max(map(len, vocabulary))), "longest_word": np.int64(longest),
            "zero": [0],
            "one": [1],
            "minus_one": [-1],
            "space": [[alphabet.rows[" "]]],
            "yes": [True],
            "zero_scalar": np.int64(0),
            "one_scalar": np.int64(1),
            "yes_scalar": np.array(object=True),
            **(_special_constants(list(special), alphabet) if special else {}),
        },
        {
            "raw_chars": {
                "keys_strings": list(alphabet.rows),
                "values_int64s": list(alphabet.rows.values()),
                "default_int64": len(alphabet.table) - 1,
            },
            "next_state": {
                "keys_int64s": list(edges),
                "values_int64s": list(edges.values()),
                "default_int64": -1,
            },
        },
    )  # fmt: skip


def _check(settings: Mapping[str, Any]) -> None:
    normalizer = settings["normalizer"] or {"type": "Sequence", "normalizers": []}
    parts = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    if strangers := sorted({one["type"] for one in parts} - set(_NORMALIZERS)):
        raise ModelSourceError(f"a WordPiece tokenizer with {strangers[0]} is not supported")
    if settings["pre_tokenizer"] != {"type": "BertPreTokenizer"}:
        raise ModelSourceError("a WordPiece tokenizer without BertPreTokenizer is not supported")
    for token in settings["added_tokens"]:
        if token["normalized"] or token["lstrip"] or token["rstrip"] or token["single_word"]:
            raise ModelSourceError(
                f"the added token {token['content']!r} is matched in normalized text, by whole "
                "words or with the spaces around it, which is not supported"
            )


def _alphabet(backend: Any, characters: Iterable[str], special: Sequence[str]) -> _Alphabet:
    """Normalize every character, and number what comes out."""
    letters = sorted(characters)
    code_points = [c for c in map(chr, itertools.chain(*_RANGES)) if category(c) != "Cn"]
    code_points.remove(_MARK)
    normalize = backend.normalizer.normalize_str if backend.normalizer else str
    normalized = normalize(_MARK.join(code_points)).split(_MARK)
    texts = dict(zip(code_points, normalized, strict=True))
    # Letters, marks and numbers are parts of words: asking for all characters takes six seconds.
    punctuation = sorted(
        {c for c in {*"".join(normalized)} if category(c)[0] in "PSZC"} | set(letters)
    )
    # One character between two letters is part of one word, or a break, or a word of its own.
    blocks = "".join(f"a{c}a " for c in punctuation)
    counts = Counter(start // 4 for _, (start, _) in backend.pre_tokenizer.pre_tokenize_str(blocks))
    kind = {c: counts[i] for i, c in enumerate(punctuation)}
    inside = [c for c in letters if kind[c] == 1]
    outside = [c for c in letters if kind[c] == 3]
    of = {c: i for i, c in enumerate(inside, _UNKNOWN + 1)}
    alone = _UNKNOWN + 1 + len(inside)  # the unknown ones that are alone
    of |= {c: i for i, c in enumerate(outside, alone + 1)}
    first = alone + 1 + len(outside)
    numbers = {1: _UNKNOWN, 2: _SPACE, 3: alone}
    spelled = sorted(set("".join(special)))
    number = {c: numbers[kind[c]] for c in punctuation} | of
    keys = {
        c: tuple(number.get(r, _UNKNOWN) for r in text)
        for c, text in texts.items()
        if text != c or c in number or c in spelled
    }
    # Characters of special tokens have rows of their own: these are matched before the
    # normalization, which may make two characters equal.
    entries = dict.fromkeys([(), *((first + i,) for i in range(len(special)))])
    places = {c: i for i, c in enumerate(spelled, len(entries))}
    lines = [*entries, *(keys[c] for c in spelled)]
    distinct = [key for key in dict.fromkeys(keys.values()) if key != (_UNKNOWN,)]
    unique = {key: i for i, key in enumerate(distinct, len(lines))}
    lines += [*distinct, (_UNKNOWN,)]
    width = max(map(len, lines))
    table = [(*line, *[_NOTHING] * (width - len(line))) for line in lines]
    rows = {"": 0} | {c: unique[key] for c, key in keys.items() if key in unique} | places
    return _Alphabet(of, alone, range(first, first + len(special)), np.array(table), rows)


def _tries(
    vocabulary: Mapping[str, int], special: Mapping[str, int], prefix: str, alphabet: _Alphabet
) -> tuple[dict[int, int], np.ndarray]:
    """Return the edges of the tries of first (root 0) and later pieces (1), and pieces of nodes.

    An edge leads from ``node * classes + number`` to a node.
    """
    edges: dict[int, int] = {}
    pieces = [-1, -1]
    items: list[tuple[int, tuple[int, ...], int]] = [
        (0, (number,), i) for number, i in zip(alphabet.special, special.values(), strict=True)
    ]
    for piece, token in vocabulary.items():
        later = piece.startswith(prefix) and piece != prefix
        items.append((0, tuple(alphabet.of[c] for c in piece), token))
        if later:
            items.append((1, tuple(alphabet.of[c] for c in piece[len(prefix) :]), token))
    for root, numbers, token in items:
        node = root
        for number in numbers:
            node = edges.setdefault(node * alphabet.classes + number, len(pieces))
            if node == len(pieces):
                pieces.append(-1)
        pieces[node] = token
    return edges, np.array(pieces)


def _special_constants(special: Sequence[str], alphabet: _Alphabet) -> dict[str, Any]:
    longest = max(map(len, special))
    patterns = [[alphabet.rows[c] for c in text] + [-1] * (longest - len(text)) for text in special]
    return {
        "patterns": np.array(patterns), "any_row": np.array(patterns) < 0,
        "window": np.arange(longest), "reach": np.arange(longest, 0, -1),
        "right": [0, longest], "left": [longest, 0],
        "spans": np.array([len(text) for text in special]), "minus_one_scalar": np.int64(-1),
    }  # fmt: skip
