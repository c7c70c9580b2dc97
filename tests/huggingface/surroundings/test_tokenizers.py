"""Tokenizers in a file give the tokens of transformers."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import transformers
from tokenizers import Tokenizer, models

from coreai_onnx.errors import ModelSourceError, SessionError
from coreai_onnx.huggingface.surroundings.tokenizers import (
    SAMPLE_TEXTS,
    tokenizer_front,
    tokenizer_of,
)
from coreai_onnx.runtime.libraries.library import extensions_path
from tests.huggingface.surroundings import small_tokenizers as small

RANGES = [(0x20, 0x7E)] * 4 + [(0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF)]
RANGES += [(0x900, 0xE7F), (0x1E00, 0x1FFF), (0x2000, 0x2BFF), (0x3041, 0x309E), (0x4E00, 0x9FFF)]
RANGES += [(0xAC00, 0xD7A3), (0x1F300, 0x1F64F)]


def random_texts(count: int) -> list[str]:
    draw = random.Random(0)
    texts = []
    for _ in range(count):
        parts = (draw.choice(RANGES) for _ in range(draw.randint(1, 12)))
        words = (
            "".join(chr(draw.randint(*part)) for _ in range(draw.randint(1, 4))) for part in parts
        )
        texts.append("".join(word + draw.choice(["", " "]) for word in words))
    return texts


def assert_equal(
    tokenizer: Any, texts: Sequence[str], *, in_order: bool = True, **how: Any
) -> None:
    front = tokenizer_front(tokenizer, 18, check=False)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(extensions_path()))
    content = ir.to_proto(front).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    names = ["input_ids", "attention_mask"]
    actual = session.run(names, {"text": np.array(texts, object)})
    expected = tokenizer(list(texts), padding=True, return_tensors="np", **how)
    for name, result in zip(names, actual, strict=True):
        both = (result, expected[name])
        # Segmentations of a Unigram with the same score differ by the order of their tokens.
        first, second = both if in_order else (np.sort(one, axis=1) for one in both)
        np.testing.assert_array_equal(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("lower", [True, False])
def test_wordpiece(lower: bool) -> None:
    tokenizer = small.bert(lower=lower)
    # Special tokens in a text, and what an operator of strings in C would end at.
    texts = ["[CLS] a [SEP]", "x[MASK].", "[mask] [[MASK]", "nul\0l", "y" * 100, "y" * 101]
    assert_equal(tokenizer, [*SAMPLE_TEXTS, *texts, *random_texts(300)])
    assert_equal(tokenizer, ["", ""])
    tokenizer.padding_side = tokenizer.truncation_side = "left"
    tokenizer.model_max_length = 7
    assert_equal(tokenizer, SAMPLE_TEXTS, truncation=True)


@pytest.mark.parametrize(
    "make",
    [
        small.byte_level,
        lambda: small.byte_level(llama=True),
        small.unigram,
        lambda: small.unigram(multilingual=True),
        small.llama_2,
    ],
    ids=["gpt2", "llama3", "t5", "xlmr", "llama2"],
)
def test_tokenizers_of_extensions(make: Any) -> None:
    tokenizer = make()
    unigram = "Unigram" in type(tokenizer.backend_tokenizer.model).__name__
    assert_equal(tokenizer, [*SAMPLE_TEXTS, *random_texts(100)], in_order=not unigram)


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelSourceError, match="needs a folder"):
        tokenizer_of(None)
    with pytest.raises(ModelSourceError, match="has no tokenizer"):
        tokenizer_of(tmp_path)
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel()))
    with pytest.raises(ModelSourceError, match=r"of the kind WordLevel .* cannot be included"):
        tokenizer_front(words, 18)
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    with pytest.raises(SessionError, match="extensions is not installed: pip install"):
        tokenizer_front(small.unigram(), 18)


def test_a_tokenizer_that_differs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small.byte_level()
    # Runs of spaces as tokens of their own: the operator loses what follows them.
    tokenizer.add_tokens(["  ", "   "])
    with pytest.raises(ModelSourceError, match=r"the tokenizer in the file gives .* for '"):
        tokenizer_front(tokenizer, 18)
