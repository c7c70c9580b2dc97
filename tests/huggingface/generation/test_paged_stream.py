"""Rows of a paged cache in a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.huggingface.generation.paged_stream import PagedStream
from coreai_onnx.runtime.sessions.session import Session
from tests.huggingface.generation.test_engine import CHUNK, tokens, wait_until_idle
from tests.models.generators import GENERATORS, tokens_of_transformers
from tests.support.huggingface_folders import llama
from tests.support.tolerances import assert_close


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Session]:
    """A decoder of torch, and its session."""
    model = llama()
    return model, export_model(
        model, tmp_path_factory.mktemp("m") / "f", cache="paged"
    ).program.session()


def logits_after(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[:, -1]
    return logits


def test_rows_have_the_logits_of_torch(exported: tuple[Any, Session]) -> None:
    model, session = exported
    stream = PagedStream(session, slots=2, tokens=96, chunk=10)
    prompts = [list(range(3, 40)), [5, 9]]
    rows = [stream.join(prompt, len(prompt) + 2) for prompt in prompts]
    assert rows[0] is not None
    assert rows[1] is not None
    # A chunk is a whole block of 16.
    assert stream.read(rows[:1]) == [None]
    assert stream.read(rows[:1]) == [None]
    assert rows[0].read == 32
    for row, prompt in zip(rows, prompts, strict=True):
        (logits,) = stream.read([row])
        assert_close(logits, logits_after(model, prompt))
    for token in (7, 11):
        for row in rows:
            row.last = token
        logits = torch.cat(stream.step(rows[::-1]))
        prompts = [[*prompt, token] for prompt in prompts]
        assert_close(logits, torch.cat([logits_after(model, prompt) for prompt in prompts[::-1]]))
    assert session.state == {}, "the states of the session do not change"
    stream.close()


def test_chunks_of_as_many_tokens_are_read_in_one_call(exported: tuple[Any, Session]) -> None:
    model, session = exported
    stream = PagedStream(session, slots=5, tokens=320, chunk=16)
    # 21 tokens, 5, 21, the beginning of the first one, 16.
    prompts = [list(range(3, 24)), [5] * 5, list(range(30, 51)), [*range(3, 19), 9], [7] * 16]
    rows = [row for prompt in prompts if (row := stream.join(prompt, 30)) is not None]
    assert stream.together(rows, 1) == [0]
    # Row 3 will share what row 0 reads.
    assert stream.together(rows, 9) == [0, 2, 4]
    assert stream.together(rows[1:], 9) == [0]
    *others, last = stream.read([rows[0], rows[2], rows[4]])
    assert others == [None, None]
    assert_close(last, logits_after(model, prompts[4]))
    assert stream.together(rows[:4], 9) == [0, 1, 2]
    for row, logits in zip(rows[:3], stream.read(rows[:3]), strict=True):
        assert_close(logits, logits_after(model, list(row.prompt)))
    assert stream.together(rows[3:4], 9) == [0]
    assert rows[3].read == stream.shared_tokens == 16
    assert_close(stream.read(rows[3:4])[0], logits_after(model, prompts[3]))
    stream.close()


def test_rows_join_when_there_are_blocks(exported: tuple[Any, Session]) -> None:
    stream = PagedStream(exported[1], slots=9, tokens=48, chunk=16)
    first = stream.join([5], 33)
    assert first is not None
    assert stream.join([5], 3) is None
    stream.leave(first)
    assert stream.join([5], 3) is not None


def test_longer_rows_than_the_cache_or_the_model_are_refused(
    exported: tuple[Any, Session],
) -> None:
    stream = PagedStream(exported[1], slots=1, tokens=64, chunk=16, context=50)
    stream.check(50, 3)
    with pytest.raises(GenerationError, match="3 tokens with up to 48 new ones is longer than the"):
        stream.check(51, 3)
    with pytest.raises(GenerationError, match="does not fit the cache of 64"):
        stream.check(65, 3)


def test_a_slot_begins_without_the_states_of_the_row_before(tmp_path: Path) -> None:
    model = GENERATORS["mamba2"].module()
    session = export_model(model, tmp_path / "folder", cache="paged").program.session()
    stream = PagedStream(session, slots=1, tokens=64, chunk=16)
    results = []
    for prompt in ([5, 9, 17], list(range(3, 23)), [5, 9, 17]):
        row = stream.join(prompt, 30)
        assert row is not None
        logits = stream.read([row])[0]
        results.append(logits if logits is not None else stream.read([row])[0])
        stream.leave(row)
    assert stream.shared_tokens == 0
    assert torch.equal(results[0], results[2])
    assert_close(results[1], logits_after(model, list(range(3, 23))))


T5 = transformers.T5Config(
    vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0
)  # fmt: skip


def test_an_encoder_runs_once_for_each_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = transformers.T5ForConditionalGeneration(T5).eval()
    opened = LanguageModel.open(export_model(model, tmp_path / "folder", cache="paged").path)
    assert opened.encoder is not None
    read: list[int] = []
    run = opened.encoder.run

    def counted(**inputs: Any) -> Any:
        read.append(inputs["input_ids"].shape[1])
        return run(**inputs)

    monkeypatch.setattr(opened.encoder, "run", counted)
    prompts = [tokens(i, n, 60) for i, n in enumerate((5, 40, 17, 1))]
    with opened.engine(slots=3, tokens=128, chunk=CHUNK) as engine:
        replies = [engine.submit(p, max_new_tokens=12, stop_ids=()) for p in prompts]
        for prompt, reply in zip(prompts, replies, strict=True):
            ids = torch.tensor([prompt])
            wanted = tokens_of_transformers(model, ids, torch.ones_like(ids), max_new_tokens=12)
            assert reply.result(60).tolist() == wanted[0].tolist()
        assert sorted(read) == sorted(map(len, prompts))
        wait_until_idle(engine)
        assert engine.statistics["free_blocks"] == 2 * 128 / 16
        with pytest.raises(GenerationError, match="a text of 129 tokens for the encoder is longer"):
            engine.submit([5] * 129, max_new_tokens=2)
    with pytest.raises(GenerationError, match="the decoder has a paged cache"):
        opened.generate([5, 9])
