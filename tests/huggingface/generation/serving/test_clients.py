"""Many clients of an endpoint: in a queue, too late, gone, and all at once."""

from __future__ import annotations

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
import openai
import pytest
from starlette.testclient import TestClient

from coreai_onnx.huggingface.generation.serving.endpoint import endpoint
from tests.support.endpoints import (
    CHAT,
    COMPLETIONS,
    GREEDY,
    TOOLS,
    Held,
    error_of,
    events,
    generated,
    on_a_port,
    wait_for,
    wait_until_idle,
)


def test_a_full_queue(models: Any) -> None:
    app = endpoint(models[0], "llama", slots=1, queue=1)
    held, asked = Held(app), {"prompt": "abc", **GREEDY}
    with TestClient(app) as client, ThreadPoolExecutor(2) as pool:
        first = pool.submit(client.post, COMPLETIONS, json=asked)
        assert held.reached.wait(60)
        second = pool.submit(client.post, COMPLETIONS, json=asked)
        wait_for(lambda: held.engine.statistics["waiting"] == 1)
        for further in ({}, {"stream": True}):
            response = client.post(COMPLETIONS, json={**asked, **further})
            assert response.status_code == 429
            assert response.headers["retry-after"] == "1"
            assert error_of(response)["code"] == "rate_limit_exceeded"
        held.opened.set()
        for answer in (first, second):
            text = answer.result(60).json()["choices"][0]["text"]
            assert text == generated(models, "abc")


def test_a_queue_that_takes_a_part_of_a_request(models: Any) -> None:
    app = endpoint(models[0], "llama", slots=1, queue=1)
    held = Held(app)
    with TestClient(app) as client:
        response = client.post(COMPLETIONS, json={"prompt": "abc", "n": 5})
        assert response.status_code == 429
        held.opened.set()
        wait_until_idle(held.engine)


def test_requests_that_take_too_long(models: Any) -> None:
    app = endpoint(models[0], "llama", timeout=0.3)
    held = Held(app)
    with TestClient(app) as client:
        response = client.post(COMPLETIONS, json={"prompt": "abc"})
        assert response.status_code == 504
        assert error_of(response)["code"] == "timeout"
        response = client.post(COMPLETIONS, json={"prompt": "abc", "stream": True})
        assert response.status_code == 200
        last = json.loads(response.text.removeprefix("data: "))
        assert last["error"]["code"] == "timeout"
        held.opened.set()
        wait_until_idle(held.engine)


def test_a_model_that_fails(models: Any) -> None:
    app = endpoint(models[0], "llama")

    def read(row: Any) -> Any:
        raise RuntimeError("out of order")

    app.state.engine._stream.read = read
    with TestClient(app) as client:
        response = client.post(COMPLETIONS, json={"prompt": "abc"})
        assert response.status_code == 500
        assert error_of(response)["type"] == "server_error"
        assert "out of order" in error_of(response)["message"]
        response = client.post(COMPLETIONS, json={"prompt": "abc", "stream": True})
        assert (
            "out of order" in json.loads(response.text.removeprefix("data: "))["error"]["message"]
        )


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_goes_away_is_cancelled(models: Any, is_streamed: bool) -> None:
    app = endpoint(models[0], "llama", slots=2)
    held = Held(app)
    with on_a_port(app) as address, httpx.Client(base_url=address) as client:
        asked = {"prompt": "abc", **GREEDY, "stream": is_streamed}
        with pytest.raises(httpx.ReadTimeout), client.stream(
            "POST", COMPLETIONS, json=asked, timeout=0.5
        ) as response:  # fmt: skip
            response.read()
        assert held.reached.is_set()
        cancelled = 'coreai_onnx_answers_total{finish_reason="cancelled"} 1.0'
        wait_for(lambda: cancelled in client.get("/metrics").text)
        held.opened.set()
        wait_until_idle(held.engine)
        # The chunk that was being read is all that was computed.
        assert "coreai_onnx_generated_tokens_total 0.0" in client.get("/metrics").text
        text = client.post(COMPLETIONS, json={**asked, "stream": False}).json()["choices"][0][
            "text"
        ]
        assert text == generated(models, "abc")


@pytest.mark.parametrize("is_streamed", [False, True])
def test_what_is_not_complete_at_the_end_is_cancelled(models: Any, is_streamed: bool) -> None:
    app = endpoint(models[0], "llama", slots=2)
    held, asked = Held(app), {"prompt": "abc", **GREEDY, "stream": is_streamed}
    with ThreadPoolExecutor(1) as pool:
        with on_a_port(app, grace=1) as address:
            answer = pool.submit(httpx.post, f"{address}{COMPLETIONS}", json=asked, timeout=60)
            assert held.reached.wait(60)
            # The engine ends after the chunk that it reads.
            threading.Timer(3, held.opened.set).start()
        error = answer.exception(60)
        assert isinstance(error, httpx.RemoteProtocolError) or answer.result().status_code == 500
    assert not any(thread.name == "coreai_onnx engine" for thread in threading.enumerate())


def test_the_client_of_openai(models: Any, app: Any) -> None:
    with on_a_port(app) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        assert [model.id for model in client.models.list()] == ["llama"]
        answer = client.completions.create(model="llama", prompt="abc", **GREEDY)
        assert answer.choices[0].text == generated(models, "abc")
        chat = client.chat.completions.create(model="llama", messages=CHAT, tools=TOOLS, **GREEDY)
        stream = client.chat.completions.create(
            model="llama", messages=CHAT, tools=TOOLS, stream=True,
            stream_options={"include_usage": True}, **GREEDY,
        )  # fmt: skip
        *chunks, last = stream
        texts = [chunk.choices[0].delta.content or "" for chunk in chunks]
        assert "".join(texts) == chat.choices[0].message.content
        assert last.usage == chat.usage
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="llama", prompt="a" * 256)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="other", prompt="a")
        client.close()


@pytest.mark.slow
def test_many_clients_some_of_which_go_away(models: Any) -> None:
    prompts = [f"{i} {'ab' * (i % 9)}" for i in range(12)]
    wanted = [generated(models, prompt) for prompt in prompts]
    app = endpoint(models[0], "llama", slots=4)

    def ask(address: str, number: int) -> str:
        draw = random.Random(number)
        which, is_streamed, leaves = draw.randrange(12), draw.random() < 0.5, draw.random() < 0.3
        asked = {"prompt": prompts[which], **GREEDY, "stream": is_streamed}
        seconds = draw.uniform(0.001, 0.2) if leaves else 60
        try:
            with httpx.Client(base_url=address, timeout=seconds) as client:
                if not is_streamed or not leaves:
                    response = client.post(COMPLETIONS, json=asked)
                    response.raise_for_status()
                    choices = (x["choices"][0] for x in events(response.text)) if is_streamed else (
                        response.json()["choices"]
                    )  # fmt: skip
                    assert "".join(choice["text"] for choice in choices) == wanted[which]
                    return "answered"
                with client.stream("POST", COMPLETIONS, json=asked) as response:
                    for line, _ in zip(
                        response.iter_lines(), range(draw.randrange(8)), strict=False
                    ):
                        assert line == "" or line.startswith("data: {")
                return "left"
        except httpx.TimeoutException:
            assert leaves
            return "left"

    with on_a_port(app) as address, ThreadPoolExecutor(16) as pool:
        ends = list(pool.map(lambda number: ask(address, number), range(200)))
        wait_until_idle(app.state.engine)
        assert app.state.engine.statistics["free_blocks"] == 4 * 256 // 16
    assert ends.count("answered") + ends.count("left") == 200
    assert ends.count("answered") > 120
    assert ends.count("left") > 20
