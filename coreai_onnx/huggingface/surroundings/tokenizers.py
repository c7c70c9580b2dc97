"""The tokenizer of a folder as a graph, checked against the tokenizer itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import transformers

from coreai_onnx.errors import ModelSourceError, failures_as
from coreai_onnx.huggingface.surroundings.extension_tokenizers import byte_level, sentencepiece
from coreai_onnx.huggingface.surroundings.graphs import EXTENSIONS
from coreai_onnx.huggingface.surroundings.token_graphs import (
    NO_LIMIT,
    TEXT,
    Ends,
    Flat,
    tokenizer_graph,
)
from coreai_onnx.huggingface.surroundings.wordpiece import wordpiece
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.libraries.library import extensions_path
from coreai_onnx.runtime.sessions.session import Session

SAMPLE_TEXTS: tuple[str, ...] = (
    "",
    "a",
    "Hello, world!",
    "  leading",
    "trailing  ",
    "two  spaces",
    "tab\there",
    "new\nline",
    "new\n\nlines",
    "crlf\r\nline",
    "It's John's dog; I'll, we've, they'd, he'S, DON'T.",
    "e-mail: someone@example.com",
    "https://example.com/a?b=c&d=%20#x",
    "3.14159",
    "1234567890",
    "1,000,000.00",
    "50%",
    "$9.99",
    "100\u20ac",
    "\xbd \xbc \xb2",
    "\xbd",
    "\u21165",
    "x\xb2+y\xb2",
    "na\xefve caf\xe9",
    "NA\xcfVE CAF\xc9",
    "Z\xfcrich Stra\xdfe",
    "STRASSE \u1e9e",
    "\ufb01ne \ufb02ow",
    "\uff21\uff22\uff23\uff11\uff12\uff13",
    "\u0130stanbul \u0131I",
    "\u0395\u03bb\u03bb\u03ac\u03b4\u03b1 \u03a3\u038a\u03a3\u03a5\u03a6\u039f\u03a3",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\u041f\u0420\u0418\u0412\u0415\u0422 \u0401 \u0451 \u0439 \u0419",
    "\u0423\u043a\u0440\u0430\u0457\u043d\u0441\u044c\u043a\u0430 \u0457\u0436\u0430\u043a",
    "\u4f60\u597d\uff0c\u4e16\u754c",
    "\u4f60\u597dworld\u6df7\u5408",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8",
    "\u30ab\u30bf\u30ab\u30ca \uff76\uff80\uff76\uff85 \u30ac \u304c",
    "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8",
    "\uac01",
    "\u0e44\u0e17\u0e22\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902 \u092a\u093e\u0920",
    "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0646\u0635",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u0645\u064e\u0631\u0652\u062d\u064e\u0628\u064b\u0627",
    "Ti\u1ebfng Vi\u1ec7t c\xf3 d\u1ea5u",
    "Tie\u0302\u0301ng Vie\u0323\u0302t",
    "cafe\u0301",
    "o\u0308",
    "\u0301alone",
    "\U0001f600",
    "\U0001f600\U0001f603\U0001f604 emoji",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family",
    "\U0001f44d\U0001f3fd",
    "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7",
    "\u2764\ufe0f",
    "\xa9\xae\u2122",
    "\u201cquotes\u201d \u2018single\u2019 \xabguillemets\xbb",
    "dash \u2013 em \u2014 minus \u2212",
    "ellipsis\u2026",
    "a\xa0b",
    "a\u2003b",
    "a\u200bb",
    "a\u200db",
    "a\xadb",
    "a\u2028b",
    "\u3000\u5168\u89d2\u3000",
    "\U00020000 cjk ext b",
    "\U0001d4b3 math \U0001d7d9",
    "\U0001d54f",
    "!!!",
    "...",
    "?!?!",
    "#hashtag @mention",
    "snake_case camelCase kebab-case",
    "def f(x):\n    return x**2  # comment",
    "<html><body>&amp;</body></html>",
    '{"k": [1, 2.5, null]}',
    "\\n \\t \\\\",
    "`code`",
    "a/b\\c",
    "^_^ ~tilde~ |pipe|",
    "$^+<=>`|~",
    "supercalifragilisticexpialidocious",
    " ' s",
    "' re",
    "12 345 6789 0",
    "1 2 3",
    "A.B.C. U.S.A.",
    "Mr. O'Neill-Smith's",
    "iPhone15Pro",
    "ALLCAPS lower MiXeD",
    "\u01c5 \u01c6 \u01c4",
    "\u0149",
    "\ua66e",
    "\ufdfa",
    "\u3231 \u337f",
    "\u2460\u2461\u2462",
    "\u2163\u216b",
    "K \xc5 \u03a9",
    "\u1e9b\u0323",
    "\xe4\u0323",
    "\u1fbf \u0390",
    "\U00010400\U00010428",
    "a\u0300\u0301\u0302b",
    "fi\ufb01",
    "~`!@#$%^&*()_+-={}[]|:;<>?,./'\"",
    "\xa1\xbf \xa7 \xb6 \u2022 \u2030",
    "\xb7 \u30fb",
    "\u060c\u061b\u061f",
    "\u3002\u3001\uff01\uff1f",
    "\u0660\u0661\u0662\u0663",
    "\u0966\u0967\u0968",
    "\uff11\uff12\uff13",
    "\u0e51\u0e52",
    *(letter * count for letter, count in (("x", 99), ("y", 300), ("\u4f60", 120))),
    "The quick brown fox jumps over the lazy dog. " * 12,
    "word " * 300,
)
"""Scripts, accents in both forms, emoji, numbers, code, white space; empty and long."""


_FILES = ("tokenizer.json", "vocab.*", "*.model")
_PROBE = "a"


def tokenizer_of(folder: Path | None) -> Any:
    """Load the tokenizer of a folder.

    Raises:
        ModelSourceError: If there is no folder or no tokenizer, or it is broken.
    """
    if folder is None:
        raise ModelSourceError('include=["tokenizer"] needs a folder: a model has no tokenizer')
    # transformers would build an empty one.
    if not any(file for name in _FILES for file in folder.glob(name)):
        raise ModelSourceError(f"{folder}: has no tokenizer; there is no {', '.join(_FILES)}")
    with failures_as(ModelSourceError, f"cannot load the tokenizer of {folder}"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if not isinstance(tokenizer, transformers.PreTrainedTokenizerFast):
        raise ModelSourceError(
            f"{type(tokenizer).__name__} is not a tokenizer of the library tokenizers; only "
            "these can be included"
        )
    return tokenizer


def tokenizer_front(tokenizer: Any, opset: int, *, check: bool = True) -> ir.Model:
    """Return the model of a tokenizer: ``text`` ``[batch]`` to ``input_ids`` and its masks.

    It computes ``tokenizer(texts, padding=True, truncation=True)``.

    Args:
        tokenizer: A fast tokenizer of transformers.
        opset: The opset of the file.
        check: Whether to compare it with the tokenizer on the sample texts.

    Raises:
        ModelSourceError: If the tokenizer is of an unknown kind, onnxruntime-extensions is
            needed and not installed, or a text gives other tokens.
    """
    backend = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    # ``tokenizer.json`` may pad and truncate to a length of its own; transformers replaces both.
    backend.no_padding()
    backend.no_truncation()
    settings = json.loads(backend.to_str())
    flat = _flat(backend, settings)
    ends = _ends(tokenizer, backend)
    if check:
        # Of segmentations with the same score, SentencePiece and transformers choose either.
        in_order = settings["model"]["type"] != "Unigram"
        _check(tokenizer, tokenizer_graph(flat, ends, opset), in_order=in_order)
    return tokenizer_graph(flat, ends, opset)


def _flat(backend: Any, settings: Any) -> Flat:
    kind = settings["model"]["type"]
    if kind == "WordPiece":
        return wordpiece(backend, settings)
    pre_tokenizer = json.dumps(settings["pre_tokenizer"])
    if kind == "Unigram" or (kind == "BPE" and settings["model"].get("byte_fallback")):
        extensions_path()
        return sentencepiece(settings)
    if kind == "BPE" and '"ByteLevel"' in pre_tokenizer:
        extensions_path()
        return byte_level(settings)
    raise ModelSourceError(
        f"a tokenizer of the kind {kind} with the pre-tokenizer "
        f"{(settings['pre_tokenizer'] or {'type': 'none'})['type']} cannot be included; WordPiece, "
        "byte-level BPE, BPE with byte fallback and Unigram can"
    )


def _ends(tokenizer: Any, backend: Any) -> Ends:
    """Read what comes around the tokens of a text from one that is tokenized."""
    inner = backend.encode(_PROBE, add_special_tokens=False).ids
    whole = backend.encode(_PROBE).ids
    at = next(i for i in range(len(whole)) if whole[i : i + len(inner)] == inner)
    limit = tokenizer.model_max_length
    pad = tokenizer.pad_token_id
    return Ends(
        tuple(whole[:at]),
        tuple(whole[at + len(inner) :]),
        0 if pad is None else pad,
        limit if limit < NO_LIMIT else None,
        tokenizer.padding_side == "left",
        tokenizer.truncation_side == "left",
    )


def _check(tokenizer: Any, front: ir.Model, *, in_order: bool) -> None:
    uses = {node.domain for node in front.graph.all_nodes()}
    libraries = [extensions_path()] if EXTENSIONS in uses else []
    session = Session(OnnxProgram({"main": front}), custom_ops=libraries).ort
    for texts in ([text] for text in SAMPLE_TEXTS):
        expected = tokenizer(texts, truncation=True)["input_ids"]
        ids = session.run(["input_ids"], {TEXT: np.array(texts, object)})[0].tolist()
        same = ids == expected if in_order else sorted(ids[0]) == sorted(expected[0])
        if not same:
            raise ModelSourceError(
                f"the tokenizer in the file gives {_few(ids[0])} for {texts[0]!r:.60}, "
                f"transformers {_few(expected[0])}\n  such a tokenizer cannot be included; "
                "check=False includes it nevertheless"
            )


def _few(ids: Sequence[int]) -> str:
    return f"{', '.join(map(str, ids[:8]))}{', …' if len(ids) > 8 else ''}"
