"""Replies: pieces for threads and asyncio, and stop strings."""

from __future__ import annotations

import asyncio
import threading

import pytest

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface.generation.replies import Channel, Reply, StoppedText, checked_stops
from coreai_onnx.huggingface.generation.streamed_text import StreamedText
from tests.support.huggingface_folders import tokenizer


def test_pieces_come_in_order_and_then_the_error() -> None:
    channel = Channel()
    reply = Reply(channel, [5, 9])
    with pytest.raises(TimeoutError, match=r"no token in 0\.01 s"):
        reply.result(0.01)
    channel.put(7)
    channel.put(8)
    assert next(reply) == 7
    assert reply.finish_reason is None
    channel.end("length")
    assert reply.result().tolist() == [5, 9, 8]
    assert list(reply) == []
    assert reply.finish_reason == "length"
    failed = Channel()
    failed.put("a")
    failed.end("error", GenerationError("it failed"))
    pieces = Reply(failed, None)
    assert next(pieces) == "a"
    for _ in range(2):
        with pytest.raises(GenerationError, match="it failed"):
            next(pieces)


def test_a_reply_that_nobody_holds_is_cancelled() -> None:
    channel = Channel()
    reply = Reply(channel, None)
    assert not channel.cancelled
    del reply
    assert channel.cancelled


def test_a_loop_of_asyncio_waits_without_blocking() -> None:
    channel = Channel()

    async def run() -> tuple[list[int], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        for place in range(3):
            threading.Timer(0.05 * (place + 1), channel.put, [place]).start()
        threading.Timer(0.25, channel.end, ["stop"]).start()
        pieces = [piece async for piece in Reply(channel, None)]
        ticking.cancel()
        return pieces, ticks

    pieces, ticks = asyncio.run(run())
    assert pieces == [0, 1, 2]
    assert ticks > 10


def test_a_closed_loop_is_no_error_of_the_engine() -> None:
    channel, loop = Channel(), asyncio.new_event_loop()

    async def wait() -> None:
        await asyncio.wait_for(Reply(channel, None).__anext__(), 0.01)

    with pytest.raises(TimeoutError):
        loop.run_until_complete(wait())
    loop.close()
    channel.put("a")
    channel.end("stop")
    assert channel.get() == "a"


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one two three", ["two"], ("one ", True)),
        ("one two three", ["e t", "two"], ("on", True)),
        ("abababc", ["abc"], ("abab", True)),
        ("one tw", ["two"], ("one tw", False)),
        ("naïve €", ["€"], ("naïve ", True)),
        ("one", [], ("one", False)),
    ],
)
def test_stop_strings(text: str, stops: list[str], expected: tuple[str, bool]) -> None:
    """Each token is a byte: strings and characters span tokens."""
    decode = tokenizer().decode
    found = StoppedText(StreamedText(decode), stops)
    shown = ""
    for token in tokenizer()(text)["input_ids"]:
        piece, ended = found.add(token)
        shown += piece
        assert expected[0].startswith(shown)
        if ended:
            assert (shown, True) == expected
            return
    assert (shown + found.rest(), False) == expected


def test_half_a_character_comes_at_the_end() -> None:
    tokens = tokenizer()("a€")["input_ids"][:-1]
    found = StoppedText(StreamedText(tokenizer().decode), ["x"])
    assert [found.add(token)[0] for token in tokens] == ["a", "", ""]
    assert found.rest() == tokenizer().decode(tokens)[1:] != ""


def test_stops_that_are_refused() -> None:
    assert checked_stops(None, is_text=False) == ()
    assert checked_stops("x", is_text=True) == ("x",)
    for stop in ([1], [""], [b"x"]):
        with pytest.raises(GenerationError, match="must be text, or a list of texts"):
            checked_stops(stop, is_text=True)  # type: ignore[arg-type]
    with pytest.raises(GenerationError, match="the prompt is token ids; give stop_ids"):
        checked_stops("x", is_text=False)
