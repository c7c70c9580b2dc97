"""OpenAI's requests by HTTP: answers are those of ``generate``, and faults those of one request."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
import openai
import pytest
from starlette.testclient import TestClient

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.huggingface.serving.endpoint import endpoint
from tests.support.endpoints import on_a_port, write_folders

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi ä"}]
CHAT_TEXT = "<s>system: Be brief.<s>user: Hi ä<s>assistant: "
GREEDY = {"temperature": 0, "max_tokens": 24}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguageModel, LanguageModel]:
    """A decoder with a paged cache, and the same with one that grows."""
    paged, growing = write_folders(tmp_path_factory.mktemp("endpoint"))
    return LanguageModel.open(paged, threads=1), LanguageModel.open(growing, threads=1)


@pytest.fixture
def app(models: tuple[LanguageModel, LanguageModel]) -> Any:
    return endpoint(models[0], "llama", slots=4, max_body=4096)


@pytest.fixture
def client(app: Any) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as started:
        yield started
        wait_until_idle(app.state.engine)


class Held:
    """Holds the steps of an engine until it is opened."""

    def __init__(self, app: Any) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()
        self.engine, self._read = app.state.engine, app.state.engine._stream.read
        self.engine._stream.read = self.read

    def read(self, row: Any) -> Any:
        self.reached.set()
        assert self.opened.wait(60)
        return self._read(row)


def wait_until_idle(engine: Any) -> None:
    wait_for(lambda: not any(map(engine.statistics.get, ("waiting", "reading", "running"))))


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def generated(models: Any, prompt: Any, count: int = 24, **options: Any) -> str:
    """Return what ``generate`` makes of a prompt."""
    return models[1].generate(prompt, max_new_tokens=count, **options)


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def error_of(response: Any) -> dict[str, Any]:
    content = response.json()
    assert content.keys() == {"error"}
    assert content["error"].keys() == {"message", "type", "param", "code"}
    return content["error"]


def test_a_completion(models: Any, client: TestClient) -> None:
    wanted = generated(models, "Hello ä")
    asked = {"model": "llama", "prompt": "Hello ä", **GREEDY}
    answer = client.post(COMPLETIONS, json=asked).json()
    (choice,) = answer["choices"]
    assert choice["text"] == wanted
    assert choice["finish_reason"] == "length"
    tokens = len(models[1].tokenizer("Hello ä")["input_ids"])
    usage = {"prompt_tokens": tokens, "completion_tokens": 24, "total_tokens": tokens + 24}
    assert answer["usage"] == usage
    assert answer["object"] == "text_completion"
    ids = models[1].tokenizer("Hello ä")["input_ids"]
    answer = client.post(COMPLETIONS, json={**asked, "prompt": ids}).json()
    assert answer["choices"][0]["text"] == wanted
    answer = client.post(COMPLETIONS, json={**asked, "prompt": ["Hello ä", "b"], "n": 2}).json()
    texts = [wanted, wanted, *[generated(models, "b")] * 2]
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]


def test_sampling_and_penalties(models: Any, client: TestClient) -> None:
    sampling = {"temperature": 1.5, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.2}
    asked = {"prompt": "abc", "max_tokens": 24, "n": 2, "seed": 3, **sampling}
    answer = client.post(COMPLETIONS, json=asked).json()
    alone = client.app.state.engine
    for choice, seed in zip(answer["choices"], (3, 4), strict=True):
        reply = alone.submit("abc", max_new_tokens=24, seed=seed, **sampling)
        assert choice["text"] == reply.result(60)
    texts = {choice["text"] for choice in answer["choices"]}
    assert len(texts) == 2
    assert generated(models, "abc") not in texts


def test_a_stream(models: Any, client: TestClient) -> None:
    asked = {"prompt": "Hello ä", **GREEDY, "stream": True}
    response = client.post(COMPLETIONS, json={**asked, "stream_options": {"include_usage": True}})
    assert response.headers["content-type"] == "text/event-stream"
    *pieces, last, usage = events(response.text)
    text = "".join(piece["choices"][0]["text"] for piece in pieces)
    assert text == generated(models, "Hello ä")
    assert len(pieces) > 8
    # Characters of several bytes, and what is none, come whole.
    assert "\N{REPLACEMENT CHARACTER}" in text
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 24
    assert all(piece["usage"] is None for piece in (*pieces, last))
    response = client.post(COMPLETIONS, json={**asked, "n": 2})
    found = ["", ""]
    for event in events(response.text):
        found[event["choices"][0]["index"]] += event["choices"][0]["text"]
        assert "usage" not in event
    assert found == [text, text]


def test_stop_strings(models: Any, client: TestClient) -> None:
    whole = generated(models, "Hello ä")
    stop = whole[7:11]
    wanted = whole[: whole.index(stop)]
    asked = {"prompt": "Hello ä", **GREEDY, "stop": [stop, "nowhere to be found"]}
    (choice,) = client.post(COMPLETIONS, json=asked).json()["choices"]
    assert choice["text"] == wanted
    assert choice["finish_reason"] == "stop"
    *pieces, last = events(client.post(COMPLETIONS, json={**asked, "stream": True}).text)
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == wanted
    assert last["choices"][0]["finish_reason"] == "stop"


def test_a_chat(models: Any, client: TestClient) -> None:
    ids = models[1].tokenizer(CHAT_TEXT, add_special_tokens=False)["input_ids"]
    text = models[1].text(generated(models, ids)[len(ids) :])
    answer = client.post(CHATS, json={"messages": CHAT, **GREEDY}).json()
    message = {"role": "assistant", "content": text}
    assert answer["choices"][0]["message"] == message
    assert answer["object"] == "chat.completion"
    assert answer["usage"]["prompt_tokens"] == len(ids)
    first, *pieces, last = events(
        client.post(CHATS, json={"messages": CHAT, **GREEDY, "stream": True}).text
    )
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [piece["choices"][0]["delta"] for piece in pieces]
    assert "".join(delta["content"] for delta in deltas) == text
    assert last["choices"][0]["delta"] == {}
    # The rest of the context, where the client does not say how many tokens.
    answer = client.post(CHATS, json={"messages": CHAT, "temperature": 0}).json()
    reason, usage = answer["choices"][0]["finish_reason"], answer["usage"]
    assert reason == "stop" or usage["total_tokens"] == 256
    answer = client.post(CHATS, json={"messages": CHAT, **GREEDY, "tools": TOOLS}).json()
    assert answer["usage"]["prompt_tokens"] == len(ids) + len("[add]")


def test_a_template_that_refuses(client: TestClient) -> None:
    messages = [{"role": "tool", "content": "5"}]
    error = error_of(client.post(CHATS, json={"messages": messages}))
    assert "the chat template refuses the messages: no tools here" in error["message"]


@pytest.mark.parametrize(
    ("template", "request_", "message"),
    [
        (None, {}, "has no chat template: use completions"),
        ("{{ messages[0].content }}", {"tools": TOOLS}, "takes no tools"),
    ],
)
def test_what_a_folder_does_not_have(
    models: Any, monkeypatch: pytest.MonkeyPatch, client: TestClient,
    template: str | None, request_: dict[str, Any], message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(models[0].tokenizer, "chat_template", template)
    response = client.post(CHATS, json={"messages": CHAT, **request_})
    assert response.status_code == 400
    assert message in error_of(response)["message"]


def test_models_health_and_metrics(client: TestClient) -> None:
    (listed,) = client.get("/v1/models").json()["data"]
    assert listed["id"] == "llama"
    assert client.get("/v1/models/llama").json() == listed
    assert client.get("/health").json() == {"status": "ok"}
    client.post(COMPLETIONS, json={"prompt": "ab", **GREEDY})
    client.post(COMPLETIONS, json={"prompt": 5})
    client.get("/nowhere")
    lines = client.get("/metrics").text.splitlines()
    assert f'coreai_onnx_requests_total{{route="{COMPLETIONS}",status="200"}} 1.0' in lines
    assert f'coreai_onnx_requests_total{{route="{COMPLETIONS}",status="400"}} 1.0' in lines
    assert 'coreai_onnx_requests_total{route="other",status="404"} 1.0' in lines
    assert "coreai_onnx_prompt_tokens_total 2.0" in lines
    assert "coreai_onnx_generated_tokens_total 24.0" in lines
    assert 'coreai_onnx_answers_total{finish_reason="length"} 1.0' in lines
    assert "coreai_onnx_engine_running 0.0" in lines
    assert "coreai_onnx_first_token_seconds_count 1.0" in lines


@pytest.mark.parametrize("path", [COMPLETIONS, CHATS])
@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        ("{", "application/json", 400),
        ("[]", "application/json; charset=utf-8", 400),
        ("{}", "application/json", 400),
        ("{}", "text/plain", 415),
        (" " * 4097, "application/json", 413),
        ('{"model": "other", "prompt": "a"}', "application/json", 404),
        ('{"prompt": "\\ud800", "model": "\\ud800"}', "application/json", 404),
        ('{"prompt": "\\ud800"}', "application/json", 400),
        ('{"prompt": ""}', "application/json", 400),
    ],
)
def test_wrong_bodies(client: TestClient, path: str, body: str, kind: str, status: int) -> None:
    if path == CHATS and '"prompt": ' in body:
        content = json.loads(body)
        text = content.pop("prompt") or []
        body = json.dumps({**content, "messages": text and [{"role": "user", "content": text}]})
    response = client.post(path, content=body, headers={"content-type": kind})
    assert response.status_code == status
    assert error_of(response)["type"] == "invalid_request_error"


def test_wrong_routes(client: TestClient) -> None:
    for response, status in ((client.get(COMPLETIONS), 405), (client.get("/v1/nowhere"), 404)):
        assert response.status_code == status
        assert error_of(response)["message"]
    response = client.get("/v1/models/other")
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"prompt": "a" * 256}, "256 tokens, and there is place for 255"),
        ({"prompt": "a" * 200, "max_tokens": 57}, "the cache holds 256"),
    ],
)
def test_too_many_tokens(client: TestClient, request_: dict[str, Any], message: str) -> None:
    response = client.post(COMPLETIONS, json=request_)
    assert response.status_code == 400
    error = error_of(response)
    assert message in error["message"]
    assert error["code"] == "context_length_exceeded"


def test_settings(models: Any) -> None:
    app = endpoint(models[0], "llama", max_prompt=3)
    with TestClient(app) as client:
        assert client.post(COMPLETIONS, json={"prompt": "abc", **GREEDY}).status_code == 200
        error = error_of(client.post(COMPLETIONS, json={"prompt": "abcd"}))
        assert "place for 3" in error["message"]
    with pytest.raises(GenerationError, match="the engine is closed"):
        app.state.engine.submit("a")
    with pytest.raises(GenerationError, match="--cache paged"):
        endpoint(models[1], "llama")
    with pytest.raises(GenerationError, match="needs a tokenizer"):
        endpoint(LanguageModel(models[0].session), "llama")


@pytest.mark.parametrize("token", [-1, 260, 2**70])
def test_tokens_that_do_not_exist(client: TestClient, token: int) -> None:
    response = client.post(COMPLETIONS, json={"prompt": [5, token]})
    assert response.status_code == 400
    assert "from 0 to 259" in error_of(response)["message"]


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
