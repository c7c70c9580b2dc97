"""``response_format``: answers are JSON of the schema, and a wrong one is one client's error."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from coreai_onnx.huggingface.generation.requests import Request
from coreai_onnx.huggingface.generation.serving.grammars import Grammars
from tests.support.endpoints import CHAT, CHATS, COMPLETIONS, TEMPLATE, error_of, events, generated

SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}, "tall": {"enum": [0]}},
    "required": ["age", "tall"],
    "additionalProperties": False,
}
LIST = {
    "type": "object",
    "properties": {
        "names": {
            "type": "array",
            "items": {"enum": ["left", "right"]},
            "minItems": 8,
            "maxItems": 8,
        }
    },
    "required": ["names"],
    "additionalProperties": False,
}
DEEP: Any = {}
for _ in range(400):
    DEEP = {"type": "array", "items": DEEP, "minItems": 1}


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.5, "seed": 3}])
def test_answers_satisfy_the_schema(client: TestClient, options: dict[str, Any]) -> None:
    asked = {"response_format": form(SCHEMA), "max_tokens": 150, "n": 2, **options}
    for path, prompt in ((COMPLETIONS, {"prompt": "ab"}), (CHATS, {"messages": CHAT})):
        for choice in client.post(path, json={**asked, **prompt}).json()["choices"]:
            text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
            person = json.loads(text)
            assert list(person) == ["age", "tall"]
            assert 0 <= person["age"] <= 99
            assert person["tall"] == 0


@pytest.mark.parametrize("kind", ["lookup", "assistant"])
def test_candidates_change_no_answer_of_a_schema(models: Any, kind: str) -> None:
    """Also where the grammar refuses them, and with several requests in a step."""
    further: dict[str, Any] = {"prompt_lookup_num_tokens": 4}
    if kind == "assistant":  # the model itself, which proposes what no schema allows
        further = {"assistant_model": models[1]}
    grammar = Grammars(models[0]).of_form(form(LIST))
    proposed, accepted = 0, 0
    choose_all = Request.choose_all

    def counted(self: Request, scores: torch.Tensor) -> str:
        nonlocal proposed, accepted
        before = self.ids.shape[1]
        reason = choose_all(self, scores)
        proposed += len(scores) - 1
        accepted += self.ids.shape[1] - before - 1
        return reason

    with models[0].engine(slots=3, tokens=800) as engine, pytest.MonkeyPatch.context() as patch:

        def answers(**more: Any) -> list[str]:
            replies = [
                engine.submit(
                    "ab", max_new_tokens=120, logits_processor=[grammar.processor()],
                    **options, **more,
                )
                for options in ({}, {"temperature": 1.5, "seed": 3}, {"top_k": 9, "seed": 4})
            ]  # fmt: skip
            return [reply.result(60) for reply in replies]

        plain = answers()
        patch.setattr(Request, "choose_all", counted)
        assert answers(**further) == plain
    assert all(len(json.loads(text)["names"]) == 8 for text in plain)
    assert proposed > accepted
    assert accepted > 0 or kind == "assistant"


def test_a_schema_is_compiled_once(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_ = Grammars._compiled

    def counted(self: Grammars, text: str, field: str) -> Any:
        compiled.append(field)
        return compile_(self, text, field)

    monkeypatch.setattr(Grammars, "_compiled", counted)
    asked = {"prompt": ["a", "b"], "n": 3, "response_format": form(SCHEMA), "max_tokens": 150}
    choices = client.post(COMPLETIONS, json={**asked, "seed": 5}).json()["choices"]
    assert compiled == ["response_format"]
    assert len({json.loads(choice["text"])["age"] for choice in choices}) > 1


ADD = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["x"],
    "additionalProperties": False,
}
FUNCTIONS = [
    {"type": "function", "function": {"name": "add", "parameters": ADD}},
    {"type": "function", "function": {"name": "now"}},
]


@pytest.mark.parametrize("form_", ["<tool_call>", '"parameters"'])
def test_calls_that_are_asked_for(
    models: Any, client: TestClient, monkeypatch: pytest.MonkeyPatch, form_: str
) -> None:
    monkeypatch.setattr(models[0].tokenizer, "chat_template", f"{TEMPLATE}{{# {form_} #}}")
    named = {"type": "function", "function": {"name": "add"}}
    asked = {"messages": CHAT, "tools": FUNCTIONS, "max_tokens": 150, "n": 4, "seed": 1}
    for choice, names in ("required", {"add", "now"}), (named, {"add"}):
        answer = client.post(CHATS, json={**asked, "tool_choice": choice}).json()
        called = [x["message"]["tool_calls"] for x in answer["choices"]]
        assert {x["finish_reason"] for x in answer["choices"]} == {"tool_calls"}
        assert {x["message"]["content"] for x in answer["choices"]} == {None}
        functions = [call["function"] for (call,) in called]
        assert {x["name"] for x in functions} <= names
        for function in functions:
            arguments = json.loads(function["arguments"])
            assert arguments == {} if function["name"] == "now" else 0 <= arguments["x"] <= 9


def test_calls_that_cannot_be_asked_for(
    models: Any, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"messages": CHAT, "tools": FUNCTIONS, "tool_choice": "required"}
    assert "no known form of calls" in error_of(client.post(CHATS, json=asked))["message"]
    monkeypatch.setattr(models[0].tokenizer, "chat_template", f"{TEMPLATE}{{# <tool_call> #}}")
    wrong = {"name": "add", "parameters": {"type": "nonsense"}}
    tools = [{"type": "function", "function": wrong}]
    other = {"type": "function", "function": {"name": "other"}}
    for changed, message in (
        ({"tools": tools}, "JSON schema is refused"),
        ({"tools": []}, "a tool that tools lacks"),
        ({"tool_choice": other}, "a tool that tools lacks"),
        ({"response_format": {"type": "json_object"}}, "response_format excludes tool_choice"),
    ):
        assert message in error_of(client.post(CHATS, json={**asked, **changed}))["message"]


def test_short_answers_end(client: TestClient) -> None:
    asked = {"prompt": "ab", "response_format": form({"enum": ["left", "right"]}), "max_tokens": 20}
    for seed in range(5):
        (choice,) = client.post(COMPLETIONS, json={**asked, "seed": seed}).json()["choices"]
        assert json.loads(choice["text"]) in ("left", "right")
        assert choice["finish_reason"] == "stop"


def test_an_object(client: TestClient) -> None:
    asked = {"messages": CHAT, "response_format": {"type": "json_object"}, "stream": True}
    _, *pieces, _ = events(client.post(CHATS, json={**asked, "max_tokens": 20}).text)
    assert "".join(x["choices"][0]["delta"]["content"] for x in pieces).startswith("{")
    text = {"prompt": "a", "response_format": {"type": "text"}, "temperature": 0}
    assert client.post(COMPLETIONS, json=text).status_code == 200


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"type": 5},
        False,
        {"$ref": "#"},
        {"$ref": "#/nowhere"},
        {"enum": []},
        {"type": "string", "minLength": 5, "maxLength": 3},
        {"type": "string", "pattern": "("},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "array", "minItems": 3, "maxItems": 1},
    ],
)
def test_schemas_that_nothing_satisfies(models: Any, client: TestClient, schema: Any) -> None:
    other = {"prompt": "abc", "temperature": 0, "max_tokens": 24}
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(client.post, COMPLETIONS, json=other)
        response = client.post(
            COMPLETIONS, json={"prompt": "a", "response_format": form(schema), "n": 2}
        )
        assert beside.result(60).json()["choices"][0]["text"] == generated(models, "abc")
    assert response.status_code == 400
    assert "JSON schema" in error_of(response)["message"]


def test_deep_schemas(client: TestClient) -> None:
    asked = {"prompt": "a", "response_format": form(DEEP), "max_tokens": 2}
    assert client.post(COMPLETIONS, json=asked).status_code in (200, 400, 413)


def test_what_is_missing(models: Any, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"prompt": "a", "response_format": {"type": "json_object"}}
    monkeypatch.setattr(models[0], "stop_ids", ())
    error = error_of(client.post(COMPLETIONS, json=asked))
    assert "no token that ends a text" in error["message"]
    assert error["param"] == "response_format"
