"""OpenAI's requests by HTTP: answers are those of ``generate``, and faults those of one request."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.huggingface.generation.decoding import logits_of
from coreai_onnx.huggingface.generation.requests import Choice
from coreai_onnx.huggingface.generation.serving.endpoint import endpoint
from tests.support.endpoints import (
    CHAT,
    CHAT_TEXT,
    CHATS,
    COMPLETIONS,
    GREEDY,
    TOOLS,
    error_of,
    events,
    generated,
)
from tests.support.tolerances import assert_close


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


def test_logprobs(models: Any, client: TestClient) -> None:
    asked = {"prompt": "Hello ä", "max_tokens": 24, "logprobs": 3, "seed": 3}
    (choice,) = client.post(COMPLETIONS, json=asked).json()["choices"]
    tokenizer = models[1].tokenizer
    ids = tokenizer("Hello ä")["input_ids"]
    reply = client.app.state.engine.submit(ids, max_new_tokens=24, temperature=1.0, seed=3)
    tokens = reply.result(60)
    logits = logits_of(models[1].session, torch.tensor(tokens[None]))[0]
    wanted = logits[len(ids) - 1 : -1].log_softmax(-1)
    values = choice["logprobs"]
    assert values["tokens"] == [tokenizer.decode([int(token)]) for token in tokens[len(ids) :]]
    rows = range(len(wanted))
    assert_close(np.float32(values["token_logprobs"]), wanted[rows, tokens[len(ids) :]].numpy())
    for row, top in enumerate(values["top_logprobs"]):
        assert max(top.values()) == pytest.approx(float(wanted[row].max()), abs=1e-4)
        assert 1 <= len(top) <= 3
    text, offsets = choice["text"], values["text_offset"]
    for place, token in zip(offsets, values["tokens"], strict=True):
        # What does not complete a character comes with the next one that is complete.
        rest = text[place:].lstrip("\N{REPLACEMENT CHARACTER}")
        assert token in ("\N{REPLACEMENT CHARACTER}", "</s>") or rest.startswith(token)
    streamed = events(client.post(COMPLETIONS, json={**asked, "stream": True}).text)
    parts = [x["choices"][0]["logprobs"] for x in streamed if x["choices"][0]["logprobs"]]
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert [y for part in parts for y in part[name]] == values[name]
    (choice,) = client.post(COMPLETIONS, json={**asked, "logprobs": 0}).json()["choices"]
    assert choice["logprobs"] == {**values, "top_logprobs": None}


def test_logprobs_of_a_chat(client: TestClient) -> None:
    asked = {"messages": CHAT, **GREEDY, "logprobs": True}
    (choice,) = client.post(CHATS, json={**asked, "top_logprobs": 2}).json()["choices"]
    entries = choice["logprobs"]["content"]
    assert len(entries) == 24
    for entry in entries:
        assert [len(entry["top_logprobs"]), entry["top_logprobs"][0]["logprob"]] == [
            2, entry["logprob"],
        ]  # fmt: skip
        is_part = "\N{REPLACEMENT CHARACTER}" in entry["token"]
        assert entry["bytes"] == (None if is_part else list(entry["token"].encode()))
    (choice,) = client.post(CHATS, json=asked).json()["choices"]
    assert [{**x, "top_logprobs": []} for x in entries] == choice["logprobs"]["content"]
    streamed = events(client.post(CHATS, json={**asked, "stream": True}).text)
    parts = [x["choices"][0]["logprobs"] for x in streamed if x["choices"][0]["logprobs"]]
    assert [entry for part in parts for entry in part["content"]] == choice["logprobs"]["content"]
    (choice,) = client.post(CHATS, json={"messages": CHAT, **GREEDY}).json()["choices"]
    assert choice["logprobs"] is None


@pytest.mark.parametrize("text", ["I add.{}", "{}"])
def test_calls_of_tools(
    models: Any, client: TestClient, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    # The model has random weights: it says this instead of a byte of its own.
    call = '<tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>'
    said = iter(text.format(call))
    choose = Choice.token

    def token(self: Choice, ids: Any, scores: Any, random: Any) -> int:
        choose(self, ids, scores, random)
        return models[0].tokenizer(next(said, "</s>"))["input_ids"][0]

    monkeypatch.setattr(Choice, "token", token)
    asked = {"messages": CHAT, "max_tokens": 100, "tools": TOOLS}
    (choice,) = client.post(CHATS, json=asked).json()["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["content"] == (text.format("") or None)
    (called,) = message["tool_calls"]
    assert called["function"] == {"name": "add", "arguments": '{"x": 1}'}
    said = iter(text.format(call))
    streamed = events(client.post(CHATS, json={**asked, "stream": True}).text)
    *_, before, last = [x["choices"][0] for x in streamed]
    shown = "".join(x["choices"][0]["delta"].get("content", "") for x in streamed)
    assert shown == text.format("")
    (streamed_call,) = before["delta"]["tool_calls"]
    assert streamed_call == {**called, "index": 0, "id": streamed_call["id"]}
    assert last["finish_reason"] == "tool_calls"
    # Without tools, it is text.
    said = iter(call)
    (choice,) = client.post(CHATS, json={**asked, "tools": []}).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": call}
    assert choice["finish_reason"] == "stop"


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
