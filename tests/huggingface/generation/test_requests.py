"""Requests: how tokens are chosen, and why replies end."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
    TopKLogitsWarper,
)

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.huggingface.generation.paged_stream import CacheRow, PagedStream
from coreai_onnx.huggingface.generation.replies import Channel
from coreai_onnx.huggingface.generation.requests import Choice, Draft, Lookup, Request, choice
from tests.huggingface.generation.test_engine import CHUNK, LONG, check_orders, wait_until_idle
from tests.huggingface.generation.test_paged_stream import T5
from tests.models.generators import GENERATORS
from tests.support.externalized import kernels_built
from tests.support.huggingface_folders import llama

SCORES = torch.tensor([[0.0, 3.0, 2.0, 1.0]])


def request(length: int = 4, eos: int = 9, processors: Any = (), **settings: Any) -> Request:
    criteria = StoppingCriteriaList(
        [MaxLengthCriteria(length), EosTokenCriteria(torch.tensor([eos]))]
    )
    config = GenerationConfig(max_length=length, **settings)
    chosen = choice(None, None, LogitsProcessorList(processors), criteria, config)  # type: ignore[arg-type]
    assert isinstance(chosen, Choice)
    random = torch.Generator()
    random.manual_seed(1)
    ids = torch.tensor([[5, 7]])
    return Request(Channel(), chosen, [5, 7], length, random, None, CacheRow([5, 7], [0], 0), ids)


def test_a_reply_ends_by_its_length_or_by_a_token() -> None:
    longer = request()
    assert longer.choose(SCORES) == ""
    assert longer.choose(SCORES) == "length"
    assert longer.ids.tolist() == [[5, 7, 1, 1]]
    assert [longer.channel.get(), longer.channel.get()] == [1, 1]
    assert longer.row is not None
    assert longer.row.last == 1
    assert request(eos=1).choose(SCORES) == "stop"


def test_samples_are_those_of_torch() -> None:
    sampled = request(64, processors=[TopKLogitsWarper(2)], do_sample=True)
    tokens = []
    for _ in range(40):
        sampled.choose(SCORES)
        tokens.append(sampled.channel.get())
    random = torch.Generator()
    random.manual_seed(1)
    two = SCORES.masked_fill(SCORES < 2, -torch.inf).softmax(-1)
    assert tokens == [int(torch.multinomial(two, 1, generator=random)) for _ in range(40)]
    assert set(tokens) == {1, 2}


def test_tokens_are_chosen_as_long_as_they_are_the_candidates() -> None:
    scores = torch.eye(10)[[3, 4, 5, 6]]
    for candidates, read in (([3, 4, 7], 2), ([3, 4, 5], 3), ([9, 9, 9], 0), ([], 0)):
        one = request(64)
        assert one.row is not None
        one.row.candidates = candidates
        assert one.choose_all(scores[: len(candidates) + 1]) == ""
        assert one.row.read == read
        assert one.ids.tolist() == [[5, 7, *[3, 4, 5, 6][: read + 1]]]
    short = request(4)
    assert short.row is not None
    short.row.candidates = [3, 4, 5]
    assert short.choose_all(scores) == "length"
    assert short.ids.tolist() == [[5, 7, 3, 4]]


def test_candidates_fit_the_row() -> None:
    one = request(6)
    assert one.row is not None
    one.guess, one.row.read = Lookup(9), 2
    one.ids = torch.tensor([[5, 7, 8, 9, 5, 7]])
    one.propose()
    assert one.row.candidates == [8, 9, 5]
    one.row.read = 5
    one.propose()
    assert one.row.candidates == ()
    assert Lookup(2)(one.ids) == [8, 9]
    assert Lookup(2)(torch.tensor([[5, 7]])) == []


def test_a_draft_is_what_the_smaller_model_generates(paged: tuple[Any, LanguageModel]) -> None:
    model = paged[0]
    decoding = as_growing(model).transformers_model.decoding()
    draft = Draft(decoding)
    for ids in ([5, 9, 17], [5, 9, 17, 33], [5, 9, 8, 7, 6], [4]):
        prompt = torch.tensor([ids])
        with torch.no_grad():
            wanted = model.generate(prompt, max_new_tokens=5, do_sample=False, eos_token_id=None)
        assert draft(prompt) == wanted[0, len(ids) :].tolist()


@pytest.fixture(scope="module")
def paged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, LanguageModel]:
    """A decoder of transformers, and the same with a paged cache."""
    place = tmp_path_factory.mktemp("requests") / "folder"
    return llama(), LanguageModel.open(export_model(llama(), place, cache="paged").path)


def as_growing(model: Any) -> LanguageModel:
    with tempfile.TemporaryDirectory() as place:
        return LanguageModel.open(export_model(model, f"{place}/folder", check=False).path)


@pytest.mark.parametrize("name", ["prompt_lookup_num_tokens", "assistant_model"])
def test_candidates_change_no_reply(
    paged: tuple[Any, LanguageModel], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The model itself proposes what is accepted, and one of other weights what is not.
    values: list[Any] = [4]
    if name == "assistant_model":
        values = [as_growing(model) for model in (paged[0], llama(num_hidden_layers=1))]
    for value in values:
        check_orders(paged[1], 8, 250, **{name: value})
    calls: list[tuple[int, int]] = []
    run = PagedStream._run

    def counted(self: PagedStream, rows: Any, ids: Any, count: int = 1) -> torch.Tensor:
        calls.append(ids.shape)
        return run(self, rows, ids, count)

    monkeypatch.setattr(PagedStream, "_run", counted)
    prompt = [5, 9, 17, 33, 5, 9]
    with paged[1].engine(slots=3, tokens=480, chunk=CHUNK) as engine:
        plain = engine.submit(prompt, max_new_tokens=60, stop_ids=()).result(60).tolist()
        assert len(calls) == 60
        further: dict[str, Any] = {name: values[0]}
        reply = engine.submit(prompt, max_new_tokens=60, stop_ids=(), **further)
        assert reply.result(60).tolist() == plain
        assert len(calls) - 60 < 50
        assert max(length for _, length in calls[60:]) > 1
        # A token that ends a reply within candidates ends it there.
        stop = plain[len(prompt) + 20]
        options: dict[str, Any] = {"max_new_tokens": 60, "stop_ids": (stop,)}
        ended = engine.submit(prompt, **options).result(60).tolist()
        assert engine.submit(prompt, **options, **further).result(60).tolist() == ended


@pytest.mark.parametrize("bits", [8, 4])
def test_each_reply_is_that_of_the_request_alone_with_a_cache_of_few_bits(
    bits: int, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"cache": "paged", "cache_bits": bits, "target": "kernels"}
    folder = export_model(llama(), tmp_path / "folder", **how).path
    for kernels in (True, False) if kernels_built() else (False,):
        model = LanguageModel.open(folder, kernels=kernels)
        states = {info.name: info for info in model.session.state_inputs}
        codes, scales = (states[f"past_key_values.0.key{end}"] for end in ("", "_scale"))
        assert (codes.dtype, scales.dtype) == ("uint8", "float32")
        check_orders(model, 10, 250)


def test_candidates_that_are_refused(paged: tuple[Any, LanguageModel], tmp_path: Path) -> None:
    t5 = transformers.T5ForConditionalGeneration(T5).eval()
    assistants: dict[str, Any] = {
        "must be the folder of an exported decoder": export_model(t5, tmp_path / "t5").path,
        "knows 128 tokens, and the model 260": export_model(
            GENERATORS["mistral"].module(), tmp_path / "other", check=False
        ).path,
    }
    with paged[1].engine(slots=1, tokens=64) as engine:
        for message, folder in assistants.items():
            with pytest.raises(GenerationError, match=message):
                engine.submit([5], assistant_model=folder)
        with pytest.raises(GenerationError, match="must be the folder of an exported decoder"):
            engine.submit([5], assistant_model=paged[0])
        with pytest.raises(GenerationError, match="prompt_lookup_num_tokens=0 must be an integer"):
            engine.submit([5], prompt_lookup_num_tokens=0)
    mamba = export_model(GENERATORS["mamba2"].module(), tmp_path / "mamba", cache="paged").path
    with (
        LanguageModel.open(mamba).engine(slots=1, tokens=64) as engine,
        pytest.raises(GenerationError, match="recurrent states cannot be taken back"),
    ):
        engine.submit([5], prompt_lookup_num_tokens=2)


def test_tokens_that_end_a_reply(paged: tuple[Any, LanguageModel]) -> None:
    with paged[1].engine(slots=3, tokens=480, chunk=CHUNK) as engine:
        whole = engine.submit(LONG, max_new_tokens=30, stop_ids=()).result(60).tolist()
        third = whole[len(LONG) + 2]
        reply = engine.submit(LONG, max_new_tokens=30, stop_ids=(third,))
        assert reply.result(60).tolist() == whole[: whole.index(third, len(LONG)) + 1]
        assert reply.finish_reason == "stop"
        wait_until_idle(engine)
        assert engine.statistics["free_blocks"] == 30
    assert all(thread.name != "coreai_onnx engine" for thread in threading.enumerate())
