"""Decoders as exported folders generate the tokens that transformers generates."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.generation import LanguageModel
from coreai_onnx.huggingface import export_model
from tests.models.generators import GENERATORS, PROMPTS, padded, tokens_of_transformers

LENGTH = 64


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATORS)
def test_the_tokens_of_transformers(name: str, tmp_path: Path) -> None:
    """One prompt, and three of different lengths."""
    model = GENERATORS[name].module()
    export_model(model, tmp_path / "folder")
    exported = LanguageModel.open(tmp_path / "folder")
    for prompts in (PROMPTS[:1], PROMPTS):
        ids, mask = padded(prompts)
        wanted = tokens_of_transformers(model, ids, mask, max_new_tokens=LENGTH)
        actual = exported.generate(list(prompts), max_new_tokens=LENGTH, stop_ids=())
        assert actual.tolist() == wanted.tolist()
