"""The choice of tokens, compared with that of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation.generating import LanguageModel
from coreai_onnx.huggingface.generation.sampling import Sampler, Settings
from tests.models.sequence_to_sequence import SEQUENCE_TO_SEQUENCE
from tests.support.huggingface_folders import llama

IDS = torch.tensor([[5, 9, 17]])


def chosen(logits: torch.Tensor, **settings: Any) -> list[int]:
    ids = torch.zeros(len(logits), 1, dtype=torch.int64)
    sampler = Sampler(Settings(8, **settings), torch.ones_like(ids))
    return sampler.choose(ids, logits).tolist()


def test_the_most_likely_token() -> None:
    assert chosen(torch.tensor([[0.0, 3, 1], [2, 0, 1]])) == [1, 0]


def test_a_repeated_token_is_less_likely() -> None:
    logits = torch.tensor([[2.0, 1.5]])
    assert chosen(logits) == [0]
    assert chosen(logits, repetition_penalty=2.0) == [1]


def test_padding_is_not_repeated() -> None:
    ids, mask = torch.tensor([[0, 7]]), torch.tensor([[0, 1]])
    logits = torch.tensor([[2.0, 1.5, 0, 0, 0, 0, 0, 0]])
    assert Sampler(Settings(8, repetition_penalty=2.0), mask).choose(ids, logits).tolist() == [0]


def test_top_k_and_top_p_leave_the_likely_tokens() -> None:
    logits = torch.tensor([[4.0, 3.9, 1, 0]]).repeat(200, 1)
    assert set(chosen(logits, top_k=1, seed=0)) == {0}
    assert set(chosen(logits, top_k=2, seed=0)) == {0, 1}
    assert set(chosen(logits, top_p=0.9, seed=0)) == {0, 1}
    assert len(set(chosen(logits, temperature=5.0, seed=0))) == 4


def test_a_seed_repeats_the_choice() -> None:
    logits = torch.zeros(40, 100)
    first = chosen(logits, temperature=1.0, seed=3)
    assert first == chosen(logits, temperature=1.0, seed=3)
    assert first != chosen(logits, temperature=1.0, seed=4)
    assert first != chosen(logits, temperature=1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 1.5}, "top_p"),
        ({"repetition_penalty": -1.0}, "penalty"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        chosen(torch.zeros(1, 4), **settings)


@pytest.mark.parametrize("length", [0, -1, 2.5])
def test_a_length_that_is_no_number_of_tokens(length: Any) -> None:
    with pytest.raises(GenerationError, match="max_new_tokens="):
        Settings(length)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_the_tokens_that_transformers_draws() -> None:
    model, options = llama(), {"temperature": 0.8, "top_k": 20, "top_p": 0.95}
    torch.manual_seed(7)
    wanted = model.generate(
        IDS, do_sample=True, max_new_tokens=12, repetition_penalty=1.3, eos_token_id=None, **options
    )
    sampler = Sampler(Settings(12, repetition_penalty=1.3, seed=7, **options), torch.ones_like(IDS))
    ids = IDS
    for _ in range(12):
        with torch.no_grad():
            logits = model(ids).logits[:, -1]
        ids = torch.cat([ids, sampler.choose(ids, logits)[:, None]], dim=1)
    assert ids.tolist() == wanted.tolist()


RULES: list[dict[str, Any]] = [
    {"forced_bos_token_id": 7, "forced_eos_token_id": 9},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.2},
    {"suppress_tokens": [3, 5, 8], "begin_suppress_tokens": [4, 2], "forced_bos_token_id": 7},
]


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: next(iter(rules)))
def test_the_rules_of_a_configuration(rules: dict[str, Any], tmp_path: Path) -> None:
    """Of BART, and of Llama, with its likely tokens suppressed."""
    for model in (SEQUENCE_TO_SEQUENCE[1].module(), llama()):
        likely = model(input_ids=IDS).logits[0, -1].argsort(descending=True)[:4].tolist()
        suppressed = {name: likely for name in rules if "suppress" in name}
        model.generation_config.update(**{"forced_eos_token_id": None} | rules | suppressed)
        model.config.forced_eos_token_id = None
        settings = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
        wanted = model.generate(input_ids=IDS, attention_mask=torch.ones_like(IDS), **settings)
        folder = export_model(model, tmp_path / type(model).__name__, check=False).path
        tokens = LanguageModel.open(folder).generate(IDS, max_new_tokens=12, stop_ids=())
        assert tokens.tolist() == wanted.tolist()
