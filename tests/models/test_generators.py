"""Decoders as exported folders generate the tokens that transformers generates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from coreai_onnx.generation import LanguageModel, generate
from coreai_onnx.huggingface import export_model
from tests.models.generators import GENERATORS, PROMPTS, padded, tokens_of_transformers
from tests.models.sequence_to_sequence import SEQUENCE_TO_SEQUENCE

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
        given = {"attention_mask": mask, "max_new_tokens": LENGTH, "stop_ids": ()}
        actual = exported.generate(ids, **given)
        assert actual.tolist() == wanted.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("architecture", SEQUENCE_TO_SEQUENCE, ids=lambda one: one.name)
def test_the_tokens_of_an_encoder_and_a_decoder(architecture: Any, tmp_path: Path) -> None:
    """Texts with padding, or spectrograms."""
    model = architecture.module()
    model.generation_config.forced_eos_token_id = None
    exported = export_model(model, tmp_path / "folder").path
    for batch in (1, 3):
        given = architecture.arguments(batch, 9)
        del given["decoder_input_ids"]
        wanted = transformers.GenerationMixin.generate(
            model, **given, max_new_tokens=LENGTH, do_sample=False, eos_token_id=None
        )
        prompt, mask = given[model.main_input_name], given.get("attention_mask")
        actual = generate(exported, prompt, attention_mask=mask, max_new_tokens=LENGTH, stop_ids=())
        assert actual.tolist() == wanted.tolist()
