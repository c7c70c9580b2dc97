"""Decoders as exported folders generate the tokens that transformers generates."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import LanguageModel, generate
from coreai_onnx.model.inventory import weights
from coreai_onnx.passes.stored_weights import store_weights_as
from coreai_onnx.program import OnnxProgram
from tests.models.generators import (
    GENERATORS,
    PROMPTS,
    RWKV,
    padded,
    tokens_of_transformers,
    with_weights_of_16_bits,
)
from tests.models.sequence_to_sequence import SEQUENCE_TO_SEQUENCE, SWITCH

LENGTH = 32
"""Four times the windows of the zoo; prompts and tokens are several chunks of its state spaces."""
BATCHES = (padded(PROMPTS[:1]), padded(PROMPTS))


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATORS)
def test_the_tokens_of_transformers(name: str, tmp_path: Path) -> None:
    """One prompt, and three of different lengths; weights stored in float32, bfloat16, float16.

    The weights have the same values in the three dtypes, so that one export is enough.
    """
    model = with_weights_of_16_bits(GENERATORS[name].module())
    folder = export_model(model, tmp_path / "float32").path
    wanted = [(*given, wanted_tokens(model, *given)) for given in BATCHES]
    for one in (
        folder,
        with_stored_weights(folder, "bfloat16"),
        with_stored_weights(folder, "float16"),
    ):
        exported = LanguageModel.open(one)
        for ids, mask, tokens in wanted:
            given = {"attention_mask": mask, "max_new_tokens": LENGTH, "stop_ids": ()}
            assert exported.generate(ids, **given).tolist() == tokens.tolist(), one.name


@pytest.mark.slow
def test_the_tokens_of_rwkv(tmp_path: Path) -> None:
    """Each row of a batch is that of transformers for the row alone."""
    model = with_weights_of_16_bits(RWKV.module())
    exported = LanguageModel.open(export_model(model, tmp_path / "folder").path)
    ids = torch.tensor([[5, 9, 17], [8, 3, 44]])
    wanted = [wanted_tokens(model, row[None], torch.ones(1, 3, dtype=torch.int64)) for row in ids]
    tokens = exported.generate(ids, max_new_tokens=LENGTH, stop_ids=())
    assert tokens.tolist() == [row[0].tolist() for row in wanted]
    with pytest.raises(GenerationError, match="different lengths, and the model has no attention"):
        exported.generate(PROMPTS)


def wanted_tokens(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> Any:
    return tokens_of_transformers(model, ids, mask, max_new_tokens=LENGTH)


def with_stored_weights(folder: Path, dtype: str) -> Path:
    """Copy a folder with weights stored in 16 bits, nearly all of them."""
    copied = folder.with_name(dtype)
    shutil.copytree(folder, copied)
    for file in copied.glob("*.onnx"):
        program = OnnxProgram.load(file)
        elements = weights(program.model)[0]
        store_weights_as(program.model, dtype)
        assert weights(program.model)[1] < 2.1 * elements
        program.save(file)
    return copied


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [*SEQUENCE_TO_SEQUENCE, SWITCH], ids=lambda one: one.name)
def test_the_tokens_of_an_encoder_and_a_decoder(architecture: Any, tmp_path: Path) -> None:
    """Texts with padding, or spectrograms; weights stored in float32, bfloat16, float16."""
    model = with_weights_of_16_bits(architecture.module())
    model.generation_config.forced_eos_token_id = None
    folders = [
        export_model(model, tmp_path / dtype, weights_dtype=dtype).path
        for dtype in ("float32", "bfloat16")
    ]
    folders.append(with_stored_weights(folders[0], "float16"))
    for batch in (1, 3):
        given = architecture.arguments(batch, 9)
        del given["decoder_input_ids"]
        options = {"max_new_tokens": LENGTH, "do_sample": False, "eos_token_id": None}
        # Switch Transformers: without the cache, experts count all tokens, and leave some out
        wanted = transformers.GenerationMixin.generate(model, **given, **options, use_cache=True)
        prompt, mask = given[model.main_input_name], given.get("attention_mask")
        settings = {"attention_mask": mask, "max_new_tokens": LENGTH, "stop_ids": ()}
        for folder in folders:
            assert generate(folder, prompt, **settings).tolist() == wanted.tolist(), folder.name
