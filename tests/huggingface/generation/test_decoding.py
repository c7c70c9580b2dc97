"""Steps of decoders with a growing cache, with a static cache and without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

import coreai_onnx
from coreai_onnx import TorchConverter
from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import LanguageModel, stream
from coreai_onnx.huggingface.generation.decoding import Decoding, check_decoder
from coreai_onnx.runtime.sessions.session import Session
from tests.models.generators import tokens_of_transformers
from tests.models.test_caches import LENGTH, decoder, exported
from tests.support.huggingface_folders import llama
from tests.support.small_models import add_model
from tests.support.tolerances import assert_close


def steps(
    session: Session, prompt: Any, count: int, *, stop_ids: Any = (), pad_id: int = 0
) -> list[list[int]]:
    model = LanguageModel(session, stop_ids=stop_ids, pad_id=pad_id)
    tokens = stream(model, [prompt] if isinstance(prompt[0], int) else prompt, max_new_tokens=count)
    return [step.tolist() for step in tokens]


def test_a_decoder_without_a_cache() -> None:
    model, ids = llama(use_cache=False), torch.tensor([[5, 9, 17]])
    dims = {"input_ids": {0: "batch", 1: "seq"}}
    example = {"input_ids": ids.repeat(2, 1)}
    program = coreai_onnx.convert(model, (), example, dynamic_shapes=dims)
    wanted = tokens_of_transformers(model, ids, torch.ones_like(ids), max_new_tokens=8)
    session = program.session()
    assert steps(session, [5, 9, 17], 8) == wanted[0, 3:, None].tolist()
    with pytest.raises(GenerationError, match="different lengths, and the model has no attention"):
        steps(session, [[5, 9, 17], [5]], 8)


def test_a_static_cache() -> None:
    model, ids = decoder("llama"), torch.tensor([[5, 9, 17]])
    module = TorchExportableModuleWithStaticCache(model)
    converter = TorchConverter()
    converter.add_pytorch_module(module, export_fn=lambda m: exported(m, strict=False))
    session = converter.to_onnx().optimize().session()
    wanted = tokens_of_transformers(
        decoder("llama"), ids, torch.ones_like(ids), max_new_tokens=LENGTH - 2,
        cache_implementation=None,
    )  # fmt: skip
    for _ in range(2):
        assert steps(session, [5, 9, 17], LENGTH - 2) == wanted[0, 3:, None].tolist()
    with pytest.raises(
        GenerationError, match=f"needs a cache of 17 tokens, and that .* has {LENGTH}"
    ):
        steps(session, [5, 9, 17], LENGTH - 1)
    with pytest.raises(GenerationError, match="needs a cache of 18 tokens"):
        steps(session, list(range(18)), 1)


def test_generation_stops() -> None:
    model, ids = llama(use_cache=False), torch.tensor([[5, 9, 17], [8, 3, 44]])
    dims = {"input_ids": {0: "batch", 1: "seq"}}
    program = coreai_onnx.convert(model, (), {"input_ids": ids}, dynamic_shapes=dims)
    wanted = tokens_of_transformers(model, ids, torch.ones_like(ids), max_new_tokens=8)[:, 3:]
    first, second = wanted.tolist()
    assert first[2] not in first[:2] + second
    stopped = steps(program.session(), ids, 8, stop_ids=(first[2],), pad_id=99)
    assert [row[0] for row in stopped] == first[:3] + [99] * 5
    assert [row[1] for row in stopped] == second
    both = steps(program.session(), ids, 8, stop_ids=(first[2], second[1]), pad_id=99)
    assert len(both) == 3


@pytest.mark.parametrize("cache", ["growing", "static"])
def test_a_cache_is_reordered_and_cropped(cache: Any, tmp_path: Path) -> None:
    """The logits are those of a decoding that has read the remaining tokens only."""
    session = export_model(llama(), tmp_path / "folder", cache=cache).program.session()
    ids, rows = torch.tensor([[5, 9, 17, 4], [8, 3, 44, 6]]), torch.tensor([1, 1])
    decoding, shorter = Decoding(session), Decoding(session)
    decoding.extend(ids)
    decoding.logits()
    assert decoding.get_seq_length() == 4
    decoding.reorder_cache(rows)
    decoding.crop(-2)
    assert decoding.get_seq_length() == 2
    shorter.extend(ids[rows, :2])
    shorter.logits()
    for step in torch.tensor([[[7], [2]], [[30], [31]]]):
        decoding.extend(step)
        shorter.extend(step)
        assert_close(decoding.logits(), shorter.logits())
    assert decoding.ids.tolist() == [[8, 3, 7, 30], [8, 3, 2, 31]]


def test_models_that_are_no_decoders() -> None:
    with pytest.raises(GenerationError, match=r"is not a decoder(.|\n)*ids: int64(.|\n)*export_m"):
        check_decoder(Session(add_model(), kernels=False))
