"""Many requests at once: each reply is that of the request alone, and one error is that of one."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from coreai_onnx.errors import GenerationError, QueueFullError, SessionError
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import Engine, LanguageModel
from coreai_onnx.huggingface.generation.paged_stream import PagedStream
from tests.models.generators import GENERATORS, tokens_of_transformers
from tests.models.sequence_to_sequence import SEQUENCE_TO_SEQUENCE
from tests.support.huggingface_folders import llama_folder, tokenizer

CHUNK = 16
LONG = [int(x) for x in torch.randint(3, 250, (90,), generator=torch.Generator().manual_seed(7))]
ARCHITECTURES = {
    **{
        name: GENERATORS[name]
        for name in ("mistral", "gemma3_text", "qwen3_moe", "jamba", "falcon_h1", "mamba2")
    },
    **{one.name: one for one in SEQUENCE_TO_SEQUENCE if one.name in ("t5", "bart")},
}
"""Sliding windows, experts, hybrid and recurrent layers, and models with an encoder."""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, LanguageModel]:
    """A decoder of transformers, and the same with a paged cache."""
    place = tmp_path_factory.mktemp("engine")
    model = llama_folder(place / "source")
    export_model(place / "source", place / "folder", cache="paged")
    return model, LanguageModel.open(place / "folder")


@pytest.fixture
def engine(opened: tuple[Any, LanguageModel]) -> Iterator[Engine]:
    """An engine of three slots, which leaves no threads and no used blocks."""
    with opened[1].engine(slots=3, tokens=480, chunk=CHUNK) as started:
        yield started
        wait_until_idle(started)
        assert started.statistics["free_blocks"] == 30
    assert all(thread.name != "coreai_onnx engine" for thread in threading.enumerate())


def wait_until_idle(engine: Engine) -> None:
    end = time.monotonic() + 60
    while any(engine.statistics[name] for name in ("waiting", "reading", "running")):
        assert time.monotonic() < end
        time.sleep(0.01)


def tokens(seed: int, length: int, vocabulary: int = 120) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [int(x) for x in torch.randint(3, vocabulary, (length,), generator=generator)]


class Gate:
    """A processor of logits that holds the engine at a token until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        del input_ids
        self.reached.set()
        assert self.opened.wait(60)
        return scores


def test_the_tokens_of_transformers(opened: tuple[Any, LanguageModel], engine: Engine) -> None:
    prompts = [tokens(i, n) for i, n in enumerate((5, 40, 1, 17, 33, 16))]
    replies = [engine.submit(p, max_new_tokens=12, stop_ids=()) for p in prompts]
    for prompt, reply in zip(prompts, replies, strict=True):
        ids = torch.tensor([prompt])
        wanted = tokens_of_transformers(opened[0], ids, torch.ones_like(ids), max_new_tokens=12)
        assert reply.result(60).tolist() == wanted[0].tolist()
        assert reply.finish_reason == "length"


def requests(vocabulary: int) -> list[tuple[list[int], dict[str, Any]]]:
    """Return prompts with options: greedy and sampled ones, a common beginning, and penalties."""
    options: list[dict[str, Any]] = [
        {"max_new_tokens": 9},
        {"max_new_tokens": 5, "temperature": 1.5, "seed": 3},
        {"max_new_tokens": 12, "top_k": 20, "seed": 4},
        {"max_new_tokens": 7, "repetition_penalty": 1.3},
        {"max_new_tokens": 1},
    ]
    common = tokens(99, 2 * CHUNK, vocabulary)
    prompts = [tokens(i, n, vocabulary) for i, n in enumerate((3, 21, 47, 1))]
    prompts += [common + tokens(8, 5, vocabulary), common + tokens(9, 30, vocabulary), common]
    return [
        (prompt, {"stop_ids": (), **options[i % len(options)]}) for i, prompt in enumerate(prompts)
    ]


def check_orders(model: LanguageModel, count: int, vocabulary: int, **further: Any) -> None:
    """Submit requests in random orders, some of them while others run, with some cancelled.

    Further options are those of two in three requests, and must change no reply.
    """
    asked = requests(vocabulary)
    with model.engine(slots=3, tokens=416, chunk=CHUNK) as engine:
        alone = [engine.submit(p, **options).result(60).tolist() for p, options in asked]
    for seed in range(count):
        order = random.Random(seed)
        with model.engine(slots=order.choice([1, 2, 3, 7]), tokens=416, chunk=CHUNK) as engine:
            replies = {}
            for place in order.sample(range(len(asked)), len(asked)):
                prompt, options = asked[place]
                options = {**options, **(further if order.random() < 0.67 else {})}
                replies[place] = engine.submit(prompt, priority=order.choice([0, 0, 1]), **options)
                if order.random() < 0.3:
                    engine.submit(tokens(seed, 19, vocabulary), max_new_tokens=30).cancel()
                if order.random() < 0.4:
                    time.sleep(order.random() * 0.01)
            for place, reply in replies.items():
                assert reply.result(60).tolist() == alone[place], (seed, place)


def test_each_reply_is_that_of_the_request_alone(opened: tuple[Any, LanguageModel]) -> None:
    check_orders(opened[1], 25, 250)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_replies_of_further_architectures(name: str, tmp_path: Path) -> None:
    model = ARCHITECTURES[name].module()
    folder = export_model(model, tmp_path / "folder", cache="paged").path
    opened = LanguageModel.open(folder)
    prompt = torch.tensor([tokens(5, 37, 100)])
    wanted = tokens_of_transformers(model, prompt, torch.ones_like(prompt), max_new_tokens=9)
    with opened.engine(slots=1, tokens=64) as engine:
        reply = engine.submit(prompt[0], max_new_tokens=9, stop_ids=())
        assert reply.result(60).tolist() == wanted[0].tolist()
    check_orders(opened, 25, 100)


def test_long_prompts_are_read_in_chunks_between_steps(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int]] = []
    run = PagedStream._run

    def counted(self: PagedStream, rows: Any, ids: Any, count: int = 1) -> torch.Tensor:
        calls.append(ids.shape)
        return run(self, rows, ids, count)

    monkeypatch.setattr(PagedStream, "_run", counted)
    gate = Gate()
    first = engine.submit([5, 9], max_new_tokens=12, stop_ids=(), logits_processor=[gate])
    assert gate.reached.wait(60)
    second = engine.submit(LONG, max_new_tokens=2, stop_ids=())
    gate.opened.set()
    first.result(60)
    second.result(60)
    chunks = [(1, CHUNK)] * 5
    assert calls[:11] == [(1, 2), (1, 1), *(x for chunk in chunks for x in (chunk, (1, 1)))][:11]
    assert [shape for shape in calls if shape[1] > 1] == [(1, 2), *chunks, (1, 10)]
    assert (2, 1) in calls


def test_priorities_and_arrival(opened: tuple[Any, LanguageModel]) -> None:
    order: list[str] = []
    with opened[1].engine(slots=1, tokens=64) as engine:
        gate = Gate()
        replies = [engine.submit([5], max_new_tokens=2, logits_processor=[gate])]
        assert gate.reached.wait(60)

        def note(name: str) -> Any:
            return lambda _ids, scores: order.append(name) or scores

        for name, priority in (("a", 0), ("b", 2), ("c", 2), ("d", -1), ("e", 1)):
            options = {"max_new_tokens": 1, "logits_processor": [note(name)]}
            replies.append(engine.submit([5], priority=priority, **options))
        gate.opened.set()
        for reply in replies:
            reply.result(60)
    assert order == ["b", "c", "e", "a", "d"]


def test_a_full_queue_refuses_one_request(opened: tuple[Any, LanguageModel]) -> None:
    with opened[1].engine(slots=1, tokens=128, queue=2) as engine:
        gate = Gate()
        served = [engine.submit([5], max_new_tokens=2, logits_processor=[gate])]
        assert gate.reached.wait(60)
        served += [engine.submit([6], max_new_tokens=2) for _ in range(2)]
        with pytest.raises(QueueFullError, match="2 requests are waiting already: try later"):
            engine.submit([7])
        gate.opened.set()
        assert [len(reply.result(60)) for reply in served] == [3, 3, 3]
        assert len(engine.submit([7], max_new_tokens=2).result(60)) == 3


def test_cancelled_and_dropped_replies_leave_at_once(engine: Engine) -> None:
    gate = Gate()
    options: dict[str, Any] = {"max_new_tokens": 100, "stop_ids": ()}
    kept = engine.submit(LONG[:5], max_new_tokens=20, stop_ids=(), logits_processor=[gate])
    assert gate.reached.wait(60)
    running, waiting = (engine.submit(LONG[:n], **options) for n in (7, 9))
    dropped = engine.submit(LONG[:11], **options)
    waiting.cancel()
    del dropped
    gc.collect()
    gate.opened.set()
    assert [type(next(running)), type(next(running))] == [int, int]
    running.cancel()
    assert len(list(running)) < 90
    assert [reply.finish_reason for reply in (running, waiting)] == ["cancelled", "cancelled"]
    assert list(waiting) == []
    alone = engine.submit(LONG[:5], max_new_tokens=20, stop_ids=()).result(60)
    assert kept.result(60).tolist() == alone.tolist()


def test_a_request_that_fails_fails_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = engine.submit(LONG, max_new_tokens=9, stop_ids=()).result(60).tolist()

    def fails(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] == 5:
            raise ZeroDivisionError("of the client")
        return scores

    read = PagedStream.read

    calls = []

    def fails_to_read(self: PagedStream, rows: Any) -> list[torch.Tensor | None]:
        calls.append([row.prompt[0] for row in rows])
        if 77 in calls[-1]:
            raise SessionError("out of memory")
        return read(self, rows)

    monkeypatch.setattr(PagedStream, "read", fails_to_read)
    gate = Gate()
    first = engine.submit([6], max_new_tokens=1, logits_processor=[gate])
    assert gate.reached.wait(60)
    bad = engine.submit([5, 9, 17], max_new_tokens=9, stop_ids=(), logits_processor=[fails])
    unread = engine.submit([77, 5, 6], max_new_tokens=9)
    good = engine.submit(LONG, max_new_tokens=9, stop_ids=())
    gate.opened.set()
    assert len(first.result(60)) == 2
    assert good.result(60).tolist() == expected
    assert calls[1:4] == [[5, 77], [5], [77]], "a call of both fails, and then one of them"
    assert [type(next(bad)), type(next(bad))] == [int, int]
    with pytest.raises(GenerationError, match="the request failed: of the client"):
        next(bad)
    with pytest.raises(GenerationError, match="the request failed: out of memory"):
        unread.result(60)
    assert (bad.finish_reason, unread.finish_reason) == ("error", "error")


def test_a_step_that_fails_ends_the_requests_in_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = PagedStream.step

    def fails(self: PagedStream, rows: Any) -> torch.Tensor:
        if any(row.prompt[0] == 77 for row in rows):
            raise SessionError("out of memory")
        return step(self, rows)

    monkeypatch.setattr(PagedStream, "step", fails)
    with pytest.raises(GenerationError, match="the request failed: out of memory"):
        engine.submit([77, 5], max_new_tokens=9, stop_ids=()).result(60)
    assert len(engine.submit([5], max_new_tokens=3, stop_ids=()).result(60)) == 4


def test_requests_that_are_refused(opened: tuple[Any, LanguageModel], engine: Engine) -> None:
    running = engine.submit([5, 9], max_new_tokens=9, stop_ids=())
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "90 tokens with up to 400 new ones does not fit the cache of 480": (
            LONG,
            {"max_new_tokens": 400},
        ),
        "90 tokens with up to 170 new ones is longer than the 256 of the model": (
            LONG,
            {"max_new_tokens": 170},
        ),
        "a request has one prompt": ([[5], [9]], {}),
        "there is no option 'beams'": ([5], {"beams": 2}),
        "token by token, without beams": ([5], {"num_beams": 2}),
        "does not take num_return_sequences": ([5], {"num_return_sequences": 2}),
        "max_new_tokens=0 must be": ([5], {"max_new_tokens": 0}),
        "the request is not valid": ([5], {"top_k": -1}),
        "priority=0.5 must be an integer": ([5], {"priority": 0.5}),
        "the request is not valid: manual_seed": ([5], {"seed": "x"}),
        "a prompt is empty": ("", {}),
        "stop ends text": ([5], {"stop": "x"}),
        "must be text, or a list": ("x", {"stop": [""]}),
    }
    for message, (prompt, options) in cases.items():
        with pytest.raises(GenerationError, match=message):
            engine.submit(prompt, **options)
    assert len(running.result(60)) == 11
    for setting in ("slots", "tokens", "chunk", "queue"):
        with pytest.raises(GenerationError, match=f"{setting}=0 must be an integer of 1 or more"):
            opened[1].engine(**{setting: 0})  # type: ignore[misc]
    with pytest.raises(GenerationError, match="and the machine has"):
        opened[1].engine(tokens=1 << 50)


def test_other_caches_have_other_calls(opened: tuple[Any, LanguageModel], tmp_path: Path) -> None:
    with pytest.raises(GenerationError, match="the decoder has a paged cache"):
        opened[1].generate([5, 9])
    growing = export_model(opened[0], tmp_path / "growing", check=False).path
    with pytest.raises(GenerationError, match="an engine needs a decoder with a paged cache"):
        LanguageModel.open(growing).engine()


def test_stop_strings_across_tokens(opened: tuple[Any, LanguageModel], engine: Engine) -> None:
    options: dict[str, Any] = {"max_new_tokens": 40, "stop_ids": ()}
    text = engine.submit("Hello", **options).result(60)
    ids = torch.tensor([tokenizer()("Hello")["input_ids"]])
    wanted = tokens_of_transformers(opened[0], ids, torch.ones_like(ids), max_new_tokens=40)
    assert text == tokenizer().decode(wanted[0, ids.shape[1] :], skip_special_tokens=True)
    stop = next(text[i : i + 3] for i in range(12, 30) if text.find(text[i : i + 3]) == i)
    reply = engine.submit("Hello", stop=["nowhere in it", stop], **options)
    other = engine.submit("Hello", **options)
    pieces = list(reply)
    assert "".join(pieces) == text[: text.index(stop)]
    assert len(pieces) > 1
    assert reply.finish_reason == "stop"
    assert other.result(60) == text


def test_a_common_beginning_is_read_once(engine: Engine) -> None:
    first = engine.submit(LONG, max_new_tokens=5, stop_ids=()).result(60).tolist()
    read = engine.statistics["read_tokens"]
    assert read == 90
    # Five chunks of the same text; the rest is read, and the last token always is.
    again = engine.submit(LONG, max_new_tokens=5, stop_ids=()).result(60).tolist()
    other = engine.submit([*LONG[:50], 5], max_new_tokens=5, stop_ids=())
    assert again == first
    other.result(60)
    # At the same time: the second one waits until the first has read.
    text = [*LONG[::-1], 5, 9]
    both = [engine.submit(text, max_new_tokens=5, stop_ids=()) for _ in range(2)]
    assert both[0].result(60).tolist() == both[1].result(60).tolist()
    statistics = engine.statistics
    assert statistics["shared_tokens"] == 80 + 48 + 80
    assert statistics["read_tokens"] == read + 10 + 3 + 92 + 12


def test_threads_and_asyncio(engine: Engine) -> None:
    prompts = [LONG[: 5 + i] for i in range(8)]
    options: dict[str, Any] = {"max_new_tokens": 9, "stop_ids": ()}
    alone = [engine.submit(p, **options).result(60).tolist() for p in prompts]
    results: dict[int, list[int]] = {}

    def client(place: int) -> None:
        results[place] = list(engine.submit(prompts[place], **options))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [[*prompts[i], *results[i]] for i in range(8)] == alone

    async def stream(prompt: list[int]) -> list[int]:
        return [*prompt, *[token async for token in engine.submit(prompt, **options)]]

    async def clients() -> list[list[int]]:
        gone = asyncio.create_task(stream(LONG))
        await asyncio.sleep(0.01)
        gone.cancel()
        return await asyncio.gather(*map(stream, prompts))

    assert asyncio.run(clients()) == alone


def test_closing_ends_what_is_left(opened: tuple[Any, LanguageModel]) -> None:
    gate = Gate()
    engine = opened[1].engine(slots=1, tokens=256)
    running = engine.submit([5], max_new_tokens=200, stop_ids=(), logits_processor=[gate])
    waiting = engine.submit([6], max_new_tokens=200)
    assert gate.reached.wait(60)
    threading.Timer(0.2, gate.opened.set).start()
    engine.close()
    assert all(thread.name != "coreai_onnx engine" for thread in threading.enumerate())
    assert type(next(running)) is int
    for reply in (running, waiting):
        with pytest.raises(GenerationError, match="the engine was closed before the reply was"):
            reply.result(60)
    with pytest.raises(GenerationError, match="the engine is closed"):
        engine.submit([5])
    engine.close()
