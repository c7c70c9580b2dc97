"""The fields of requests: what they mean, and what is refused with which name."""

from __future__ import annotations

from typing import Any

import pytest

from coreai_onnx.errors import RequestError
from coreai_onnx.huggingface.generation.serving.fields import (
    read_chat,
    read_completion,
    read_object,
)

USER = {"role": "user", "content": "Hi"}


def test_a_completion() -> None:
    asked = read_completion(
        {
            "prompt": ["a", "b"],
            "n": 2,
            "seed": 5,
            "temperature": 1,
            "top_p": 1,
            "top_k": 0,
            "min_p": 0.5,
            "stop": "x",
            "stream": True,
            "stream_options": {"include_usage": True},
            "repetition_penalty": 2,
            "logprobs": None,
            "presence_penalty": 0.0,
            "user": "me",
        }
    )
    assert asked.prompts == ["a", "b"]
    assert asked.stops == ["x"]
    assert asked.is_streamed
    assert asked.counts_tokens
    assert asked.max_tokens == 16
    sampling = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.5, "repetition_penalty": 2.0}
    assert [asked.of_choice(i) for i in range(2)] == [{**sampling, "seed": 5 + i} for i in range(2)]
    assert read_completion({"prompt": [1, 2]}).prompts == [[1, 2]]
    assert read_completion({"prompt": [[1, 2], [3]]}).prompts == [[1, 2], [3]]
    # Greedy: what belongs to sampling would turn it on.
    asked = read_completion({"prompt": "a", "temperature": 0, "top_p": 0.5})
    assert asked.of_choice(0) == {"do_sample": False}


def test_a_chat() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts, "name": "Ada"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "1"},
    ]
    content = {"messages": messages, "max_tokens": 9, "max_completion_tokens": 7, "tools": [call]}
    asked = read_chat(content)
    read = {**call, "function": {"name": "f", "arguments": {"x": 1}}}
    assert asked.prompts == [
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi", "name": "Ada"},
            {"role": "assistant", "content": "", "tool_calls": [read]},
            {"role": "tool", "content": "2", "tool_call_id": "1"},
        ]
    ]
    assert asked.max_tokens == 7
    assert asked.tools == [call]
    assert read_chat({**content, "tool_choice": "none"}).tools is None
    assert read_chat({"messages": [USER]}).max_tokens is None


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff", b"null", b"[" * 100_000, b"9" * 5000])
def test_what_is_no_object(body: bytes) -> None:
    with pytest.raises(RequestError, match="the body"):
        read_object(body)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("prompt", x) for x in (None, [], 1, {}, ["a", 1], [1, "a"], [[]], [[1], []], [True])],
        *[("max_tokens", x) for x in (0, -1, 1.5, "9", True, 2**31)],
        *[("temperature", x) for x in (-0.1, 2.1, "1", float("nan"), True)],
        *[("top_p", x) for x in (0, 1.1, "1", float("nan"))],
        *[("top_k", x) for x in (-1, 1.0)],
        *[("min_p", x) for x in (-0.1, 2)],
        *[("repetition_penalty", x) for x in (0, -1, 1e9)],
        *[("n", x) for x in (0, 129, 1.0)],
        *[("seed", x) for x in (2**63, -(2**63) - 1, 0.5)],
        *[("stop", x) for x in ("", [""], [1], ["a"] * 5, "a" * 257, {})],
        *[("stream", x) for x in (1, "yes")],
        *[("stream_options", x) for x in (True, {})],
        *[("logprobs", x) for x in (-1, 6, True, "5")],
        *[("echo", True), ("suffix", "x"), ("best_of", 2), ("logit_bias", {"5": 1})],
        *[("presence_penalty", 1), ("frequency_penalty", 0.5), ("nonsense", 1), ("model", 5)],
        *[("response_format", x) for x in ("text", {}, {"type": "xml"}, {"type": "json_schema"})],
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a"}}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": "object"}}),
        ("top_logprobs", 1),
    ],
)
def test_wrong_fields_are_named(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        read_completion({"prompt": "a", name: value})
    assert caught.value.param == name
    assert caught.value.status == 400
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("messages[0].role", {}),
        ("messages[0].role", 5),
        ("messages[0].role", {"role": "king", "content": "a"}),
        ("messages[0].role", {"role": [], "content": "a"}),
        ("messages[0].content", {"role": "user"}),
        ("messages[0].content", {"role": "user", "content": 5}),
        ("messages[0].content", {"role": "user", "content": [{"type": "image_url"}]}),
        ("messages[0].content", {"role": "user", "content": [{"type": "text"}]}),
        ("messages[0].content", {"role": "user", "content": ["a"]}),
        ("messages[0].tool_calls", {"role": "assistant", "content": "a", "tool_calls": 5}),
        ("messages[0].tool_calls", {"role": "assistant", "content": "a", "tool_calls": [{}]}),
    ],
)
def test_wrong_messages_are_named(place: str, message: Any) -> None:
    with pytest.raises(RequestError) as caught:
        read_chat({"messages": [message]})
    assert caught.value.param == place


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("messages", x) for x in (None, [], "Hi", {})],
        *[("tools", x) for x in (5, [5], [{}], [{"function": {}}], [{"function": {"name": 5}}])],
        *[("logprobs", x) for x in (1, "true")],
        *[("top_logprobs", x) for x in (3, -1, 21, True)],
        *[("tool_choice", x) for x in ("required", {"type": "function"}, 5, ["auto"])],
        *[("max_completion_tokens", x) for x in (0, "9")],
        ("prompt", "a"),
    ],
)
def test_wrong_fields_of_chats_are_named(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        read_chat({"messages": [USER], name: value})
    assert caught.value.param == name


def test_too_many_answers() -> None:
    with pytest.raises(RequestError, match="more than 128 answers"):
        read_completion({"prompt": ["a"] * 65, "n": 2})
