"""OpenAI's requests by HTTP: answers are those of ``generate``, and faults those of one request."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from coreai_onnx.errors import GenerationError
from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.huggingface.generation.decoding import logits_of
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


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "size": {"enum": [1, 22, 333]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


def formatted(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}


@pytest.mark.parametrize("temperature", [0, 2])
def test_a_reply_follows_a_schema(client: TestClient, temperature: float) -> None:
    asked = {"temperature": temperature, "max_tokens": 80, "response_format": formatted(SCHEMA)}
    for path, prompt in ((COMPLETIONS, {"prompt": "ab"}), (CHATS, {"messages": CHAT})):
        answer = client.post(path, json={**prompt, **asked, "n": 2, "seed": 1}).json()
        for choice in answer["choices"]:
            content = json.loads(choice.get("text") or choice["message"]["content"])
            assert content.keys() == {"name", "size"}
            assert len(content["name"]) <= 4
            assert content["size"] in (1, 22, 333)
            assert choice["finish_reason"] == "stop"
    asked["response_format"] = {"type": "json_object"}
    streamed = {"prompt": "ab", **asked, "max_tokens": 8, "stream": True}
    *pieces, last = events(client.post(COMPLETIONS, json=streamed).text)
    assert pieces[0]["choices"][0]["text"].startswith("{")
    assert last["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"enum": []}, "Unsatisfiable schema"),
        ({"type": "nonsense"}, "Invalid type: nonsense"),
        ({"$ref": "#/nowhere"}, "'/nowhere' does not exist"),
        ({"type": "string", "pattern": "("}, "regex parse error"),
    ],
)
def test_a_schema_that_nothing_follows(client: TestClient, schema: Any, message: str) -> None:
    asked = {"prompt": "ab", "response_format": formatted(schema)}
    response = client.post(COMPLETIONS, json=asked)
    assert response.status_code == 400
    error = error_of(response)
    assert message in error["message"]
    assert error["param"] == "response_format"
    assert client.post(COMPLETIONS, json={"prompt": "ab", **GREEDY}).status_code == 200


def test_log_probabilities_of_a_completion(models: Any, client: TestClient) -> None:
    asked = {"prompt": "Hello ä", **GREEDY, "logprobs": 3}
    answer = client.post(COMPLETIONS, json=asked).json()["choices"][0]
    found = answer["logprobs"]
    assert len(found["tokens"]) == len(found["token_logprobs"]) == 24
    engine = client.app.state.engine
    reply = engine.submit("Hello ä", max_new_tokens=24, do_sample=False, logprobs=3)
    assert reply.result(60) == answer["text"]
    assert [one.logprob for one in reply.scores] == found["token_logprobs"]
    ids = models[1].tokenizer("Hello ä")["input_ids"]
    for score, top in zip(reply.scores, found["top_logprobs"], strict=True):
        logits = logits_of(models[1].session, torch.tensor([ids]))[0, -1]
        expected = logits.log_softmax(-1)
        assert_close(torch.tensor(score.logprob), expected[score.token])
        assert [token for token, _ in score.top] == expected.topk(3).indices.tolist()
        assert max(top.values()) == score.logprob, "the most probable token was chosen"
        ids.append(score.token)
    pieces = events(client.post(COMPLETIONS, json={**asked, "stream": True}).text)
    parts = [piece["choices"][0]["logprobs"] for piece in pieces]
    tokens = [token for part in parts if part is not None for token in part["tokens"]]
    assert tokens == found["tokens"]


def test_log_probabilities_of_a_chat(client: TestClient) -> None:
    asked = {"messages": CHAT, **GREEDY, "logprobs": True, "top_logprobs": 2}
    (choice,) = client.post(CHATS, json=asked).json()["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == 24
    for one in content:
        assert one["top_logprobs"][0]["logprob"] == one["logprob"]
        assert len(one["top_logprobs"]) == 2
    whole = b"".join(bytes(one["bytes"]) for one in content)
    assert whole.decode(errors="replace").startswith(choice["message"]["content"][:3])
    plain = client.post(CHATS, json={"messages": CHAT, **GREEDY}).json()["choices"][0]
    assert plain["logprobs"] is None
    with pytest.raises(GenerationError, match="logprobs=-1 must be an integer of 0 or more"):
        client.app.state.engine.submit("a", logprobs=-1)


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
