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
from coreai_onnx.huggingface.surroundings.sample_texts import SAMPLE_TEXTS
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
