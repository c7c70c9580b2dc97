"""Graphs from texts to tokens, and their common end: special tokens, truncation, padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.huggingface.surroundings.graphs import graph_of

TEXT = "text"
"""The input: strings ``[batch]``."""
NO_LIMIT = 1 << 30
"""transformers marks a tokenizer without a maximum length by a length of 1e30."""


@dataclass(frozen=True)
class Flat:
    """The nodes of a graph from ``text [N]`` to ``ids [T]`` of all texts, and ``lengths [N]``.

    Attributes:
        text: The nodes, in ONNX's text form.
        constants: See `graph_of`.
        attributes: See `graph_of`.
    """

    text: str
    constants: Mapping[str, Any]
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Ends:
    """What surrounds the tokens of a text.

    Attributes:
        prefix: The special tokens before it.
        suffix: The special tokens after it.
        pad: The token of padding.
        maximum: The largest number of tokens of a text; None does not truncate.
        left_padding: Whether padding comes first.
        left_truncation: Whether the first tokens are dropped.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    pad: int
    maximum: int | None
    left_padding: bool = False
    left_truncation: bool = False


# All tokens are one table: prefix, suffix, padding, then those of the texts.
_ENDS = """
  kept = Min (lengths, limit)
  ends = CumSum (lengths, e_zero)
  first = Sub (ends, FIRST)
  total = Add (kept, extra)
  width = ReduceMax <keepdims=0> (total)
  across_all = Range (e_zero, width, e_one)
  total_column = Unsqueeze (total, e_axis)
  kept_column = Unsqueeze (kept, e_axis)
  first_column = Unsqueeze (first, e_axis)
  PLACE
  place = Sub (from_left, before)
  in_front = Less (place, e_zero)
  is_padding = Less (from_left, e_zero)
  in_text = Less (place, kept_column)
  after = Sub (place, kept_column)
  in_end = Less (after, suffixes)
  in_prefix = Add (place, before)
  in_suffix = Add (after, before)
  of_text = Add (place, first_column)
  in_texts = Add (of_text, ahead)
  end_or_pad = Where (in_end, in_suffix, padding)
  text_or_end = Where (in_text, in_texts, end_or_pad)
  front_or_text = Where (in_front, in_prefix, text_or_end)
  index = Where (is_padding, padding, front_or_text)
  everything = Concat <axis=0> (around, ids)
  input_ids = Gather (everything, index)
  begun_ = GreaterOrEqual (from_left, e_zero)
  not_over = Less (from_left, total_column)
  is_token = And (begun_, not_over)
  attention_mask = Cast <to=7> (is_token)
  token_type_ids = Mul (attention_mask, e_zero)
}
"""
_PLACES = {
    False: "rows_of = Shape (total_column)\n  placed = Expand (across_all, rows_of)\n"
    "  from_left = Identity (placed)",
    True: "free = Sub (width, total_column)\n  from_left = Sub (across_all, free)",
}


def tokenizer_graph(flat: Flat, ends: Ends, opset: int) -> ir.Model:
    """Return the model of a tokenizer: ``text`` to the inputs of a text model, ``[N, L]``.

    Args:
        flat: The graph up to the tokens.
        ends: What comes around them.
        opset: The opset.
    """
    around = len(ends.prefix) + len(ends.suffix)
    limit = NO_LIMIT if ends.maximum is None else max(ends.maximum - around, 0)
    text = (
        flat.text.strip()
        .removesuffix("}")
        .replace(
            "(int64[T] ids, int64[N] lengths)",
            "(int64[N,L] input_ids, int64[N,L] attention_mask, int64[N,L] token_type_ids)",
        )
    )
    text += _ENDS.replace("PLACE", _PLACES[ends.left_padding]).replace(
        "FIRST", "kept" if ends.left_truncation else "lengths"
    )
    constants = {
        **flat.constants,
        "limit": np.int64(limit), "extra": np.int64(around), "padding": np.int64(around),
        "before": np.int64(len(ends.prefix)), "suffixes": np.int64(len(ends.suffix)),
        "ahead": np.int64(around + 1), "around": [*ends.prefix, *ends.suffix, ends.pad],
        "e_zero": np.int64(0), "e_one": np.int64(1), "e_axis": [1],
    }  # fmt: skip
    return graph_of(text, opset, constants, flat.attributes)
