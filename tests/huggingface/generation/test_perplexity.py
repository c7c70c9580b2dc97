"""Perplexity equals torch's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import coreai_onnx
from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface import ExportedFolder, export_model
from coreai_onnx.huggingface.generation import LanguageModel, perplexity
from tests.support.huggingface_folders import (
    DOCSTRING_LLAMA,
    HELD_OUT,
    docstring_llama,
    docstring_tokenizer,
    llama,
)
from tests.support.tolerances import assert_close


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> ExportedFolder:
    """The small model with meaning, as a folder."""
    return export_model(DOCSTRING_LLAMA, tmp_path_factory.mktemp("exported") / "folder")


def losses_of_torch(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Minus the logarithm of the probability of each token but the first, in float64."""
    with torch.no_grad():
        logits = model(ids[None]).logits[0, :-1].double()
    return torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none")


def test_a_text_in_one_window(exported: ExportedFolder) -> None:
    text = HELD_OUT.read_text()[:600]
    ids = torch.tensor(docstring_tokenizer()(text)["input_ids"])
    expected = losses_of_torch(docstring_llama(), ids).mean().exp()
    for given in (text, ids, ids.tolist()):
        assert_close(torch.tensor(perplexity(exported.path, given)), expected.float())


@pytest.mark.parametrize(("window", "stride"), [(None, None), (100, 30), (64, 64), (2, 1)])
def test_windows(exported: ExportedFolder, window: int | None, stride: int | None) -> None:
    """Each token is predicted once, from the window in which it is new."""
    length = 400 if window != 2 else 30
    ids = torch.tensor(docstring_tokenizer()(HELD_OUT.read_text())["input_ids"][:length])
    model, size, step = docstring_llama(), window or 256, stride or 128
    losses = {}
    for start in range(0, length, step):
        found = losses_of_torch(model, ids[start : start + size]) if start < length - 1 else ()
        for place, loss in enumerate(found, start + 1):
            losses.setdefault(place, loss)
    expected = torch.stack(list(losses.values())).mean().exp()
    opened = LanguageModel.open(exported.path)
    actual = perplexity(opened, ids, window=window, stride=stride)
    assert_close(torch.tensor(actual), expected.float())


@pytest.mark.slow
def test_the_model_knows_what_it_was_trained_on(exported: ExportedFolder) -> None:
    """Far better than the frequencies of tokens, on text that it has never seen."""
    ids = torch.tensor(docstring_tokenizer()(HELD_OUT.read_text())["input_ids"])
    counts = ids.bincount(minlength=docstring_llama().config.vocab_size).double()
    frequencies = counts / counts.sum()
    unigrams = torch.special.entr(frequencies).sum().exp()  # of the text's own frequencies
    assert perplexity(exported.path, ids[:4000]) < unigrams / 8


@pytest.mark.parametrize("cache", ["growing", "static"])
def test_every_kind_of_model(cache: Any, tmp_path: Path) -> None:
    model = llama()
    exported = export_model(model, tmp_path / "folder", cache=cache, check=False)
    ids = torch.randint(3, 260, (40,))
    expected = losses_of_torch(model, ids).mean().exp().float()
    for one in (exported.path, exported.program, exported.program.session()):
        assert_close(torch.tensor(coreai_onnx.perplexity(one, ids)), expected)


def test_what_has_no_perplexity(exported: ExportedFolder) -> None:
    opened = LanguageModel.open(exported.path)
    for text, message in (
        ([5], "one text of two tokens or more, not \\[1, 1\\]"),
        (["two", "texts"], "one text"),
        ([[5, 9], [7, 8]], "one text"),
        ("", "a prompt is empty"),
    ):
        with pytest.raises(GenerationError, match=message):
            perplexity(opened, text)
    for window, stride in ((0, None), (1, None), (8, 9), (8, 0), (-4, None)):
        with pytest.raises(GenerationError, match=f"window={window} and stride="):
            perplexity(opened, [5, 9, 17], window=window, stride=stride)
    with pytest.raises(GenerationError, match="the prompt is text, and there is no tokenizer"):
        perplexity(opened.session, "text")
