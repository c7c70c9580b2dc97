"""The fields of OpenAI's requests, checked before anything is computed.

https://platform.openai.com/docs/api-reference/completions and …/chat
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from coreai_onnx.errors import RequestError

_MOST_CHOICES = 128
"""Prompts times ``n``, each of which is a request of the engine."""
_MOST_STOPS, _LONGEST_STOP = 4, 256
"""The text of a reply is compared with each beginning of a stop string after each token."""
_MOST_INPUTS = 2048
"""OpenAI's limit for a request of embeddings."""
_ROLES = {role: role for role in ("system", "user", "assistant", "tool")} | {"developer": "system"}
"""The roles of messages, and what chat templates call them."""
_IGNORED = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
)
"""Fields about accounts and bills, which change no answer."""
_NEUTRAL: Mapping[str, Sequence[Any]] = MappingProxyType(
    {
        "best_of": (1,),
        "echo": (False,),
        "frequency_penalty": (0,),
        "logit_bias": ({},),
        "modalities": (["text"],),
        "parallel_tool_calls": (True, False),
        "presence_penalty": (0,),
        "suffix": ("",),
    }
)
"""Fields that are not supported, with the values that ask for nothing."""


@dataclass(frozen=True)
class Asked:
    """What a request asks for.

    Attributes:
        prompts: Texts or token ids; for a chat, lists of messages.
        count: Answers to each prompt.
        max_tokens: The most new tokens; None if the client does not say.
        options: Options of the engine.
        stops: Stop strings.
        is_streamed: Whether the text is sent piece by piece.
        counts_tokens: Whether a stream ends with the numbers of tokens.
        tools: The tools that the chat template shows to the model, if any.
        form: The ``response_format``, if it asks for JSON.
        called: The tools of which the answer must call one; empty if it may be text.
        top_logprobs: The number of tokens to list with their logarithms of probabilities, beside
            each chosen one; None lists nothing.
    """

    prompts: Sequence[Any]
    count: int
    max_tokens: int | None
    options: Mapping[str, Any]
    stops: Sequence[str]
    is_streamed: bool
    counts_tokens: bool
    tools: Sequence[Any] | None = None
    form: Mapping[str, Any] | None = None
    called: Sequence[Any] = ()
    top_logprobs: int | None = None

    def of_choice(self, index: int) -> dict[str, Any]:
        """Return the options of one answer to a prompt: with a seed, each has another."""
        if "seed" not in self.options:
            return dict(self.options)
        return {**self.options, "seed": self.options["seed"] + index}


_Field = tuple[Callable[[Any], bool], str]


def _integer(least: int, most: int) -> _Field:
    def accepts(value: Any) -> bool:
        return type(value) is int and least <= value <= most  # bool is a subclass of int

    return accepts, f"an integer from {least} to {most}"


def _number(least: float, most: float, text: str) -> _Field:
    def accepts(value: Any) -> bool:
        return type(value) in (int, float) and least <= value <= most

    return accepts, text


def _is_stop(value: Any) -> bool:
    stops = [value] if isinstance(value, str) else value
    return (
        isinstance(stops, list)
        and len(stops) <= _MOST_STOPS
        and all(isinstance(one, str) and 0 < len(one) <= _LONGEST_STOP for one in stops)
    )


def _is_form(value: Any) -> bool:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind != "json_schema":
        return kind in ("text", "json_object")
    named = value.get("json_schema")
    # true and false are schemas, too.
    return isinstance(named, dict) and isinstance(named.get("schema"), dict | bool)


def _are_tools(value: Any) -> bool:
    functions = [x.get("function") if isinstance(x, dict) else x for x in _listed(value)]
    return all(isinstance(x, dict) and isinstance(x.get("name"), str) for x in functions)


def _is_choice(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get("type") == "function" and _are_tools([value])
    return value in ("auto", "none", "required")


_SWITCH: _Field = (lambda value: isinstance(value, bool), "true or false")
_TEXT: _Field = (lambda value: isinstance(value, str), "text")
_OBJECT: _Field = (lambda value: isinstance(value, dict), "an object")
_LIST: _Field = (lambda value: isinstance(value, list) and bool(value), "a list that is not empty")
_COUNT = _integer(1, 2**31 - 1)
_SMALLEST = math.ulp(0.0)
_FIELDS: Mapping[str, _Field] = MappingProxyType(
    {
        "model": _TEXT,
        "max_tokens": _COUNT,
        "n": _integer(1, _MOST_CHOICES),
        "stream": _SWITCH,
        "stream_options": _OBJECT,
        "stop": (_is_stop, f"a text of at most {_LONGEST_STOP} characters, or {_MOST_STOPS} such"),
        # Choices have the seeds that follow.
        "seed": _integer(-(2**63), 2**63 - 1 - _MOST_CHOICES),
        "temperature": _number(0, 2, "a number from 0 to 2"),
        "top_p": _number(_SMALLEST, 1, "a number above 0 and at most 1"),
        # not OpenAI's, but those of many servers
        "top_k": _integer(0, 2**31 - 1),
        "min_p": _number(0, 1, "a number from 0 to 1"),
        "repetition_penalty": _number(_SMALLEST, 100, "a number above 0 and at most 100"),
        "response_format": (_is_form, "text, json_object, or json_schema with a schema"),
    }
)
_OF_COMPLETIONS: Mapping[str, _Field] = MappingProxyType(
    {**_FIELDS, "prompt": (lambda _: True, ""), "logprobs": _integer(0, 5)}
)
_OF_CHATS: Mapping[str, _Field] = MappingProxyType(
    {
        **_FIELDS,
        "max_completion_tokens": _COUNT,
        "messages": _LIST,
        "logprobs": _SWITCH,
        "top_logprobs": _integer(0, 20),
        "tools": (_are_tools, "a list of functions with names"),
        "tool_choice": (_is_choice, "auto, none, required, or a function with a name"),
    }
)
_OF_EMBEDDINGS: Mapping[str, _Field] = MappingProxyType(
    {
        "model": _TEXT,
        "input": (lambda _: True, ""),
        "encoding_format": (lambda x: x in ("float", "base64"), "float or base64"),
    }
)


def read_object(body: bytes) -> dict[str, Any]:
    """Return the object that a body is.

    Raises:
        RequestError: If it is not JSON, or not an object.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise RequestError(f"the body must be a JSON object, got a {type(content).__name__}")
    return content


def read_completion(content: Mapping[str, Any]) -> Asked:
    """Return what a request of ``/v1/completions`` asks for.

    Raises:
        RequestError: If a field is missing, is not supported or has a wrong value.
    """
    fields = _checked(content, _OF_COMPLETIONS)
    prompts = _texts(fields, "prompt")
    # OpenAI's default
    asked = _asked(fields, prompts, fields.get("max_tokens", 16))
    return replace(asked, top_logprobs=fields.get("logprobs"))


def read_embeddings(content: Mapping[str, Any]) -> tuple[Sequence[Any], bool]:
    """Return the texts or token ids of ``/v1/embeddings``, and whether vectors are in base64.

    Raises:
        RequestError: As `read_completion`.
    """
    fields = _checked(content, _OF_EMBEDDINGS)
    inputs = _texts(fields, "input")
    if len(inputs) > _MOST_INPUTS:
        raise RequestError(f"input has more than {_MOST_INPUTS} texts", param="input")
    return inputs, fields.get("encoding_format") == "base64"


def read_chat(content: Mapping[str, Any]) -> Asked:
    """Return what a request of ``/v1/chat/completions`` asks for; errors as `read_completion`."""
    fields = _checked(content, _OF_CHATS)
    if "messages" not in fields:
        raise RequestError("messages are missing", param="messages")
    messages = [_message(one, f"messages[{i}]") for i, one in enumerate(fields["messages"])]
    most = fields.get("max_completion_tokens", fields.get("max_tokens"))
    if fields.get("top_logprobs") and not fields.get("logprobs"):
        raise RequestError("top_logprobs needs logprobs", param="top_logprobs")
    tools = None if fields.get("tool_choice") == "none" else fields.get("tools") or None
    top = fields.get("top_logprobs", 0) if fields.get("logprobs") else None
    asked = replace(_asked(fields, [messages], most), tools=tools, top_logprobs=top)
    return replace(asked, called=_called(fields.get("tool_choice"), asked))


def _called(choice: Any, asked: Asked) -> Sequence[Any]:
    """Return the tools of which an answer must call one."""
    if choice in (None, "auto", "none"):
        return ()
    tools = asked.tools or ()
    if choice != "required":
        name = choice["function"]["name"]
        tools = [tool for tool in tools if tool["function"]["name"] == name]
    if not tools:
        raise RequestError("tool_choice asks for a tool that tools lacks", param="tool_choice")
    if asked.form:
        raise RequestError("response_format excludes tool_choice", param="response_format")
    return tools


def _texts(fields: Mapping[str, Any], name: str) -> Sequence[Any]:
    """Return a field as a list of texts, or of token ids."""
    value: Any = fields.get(name)
    is_list = isinstance(value, list) and value and not isinstance(value[0], int)
    texts: list[Any] = value if is_list else [value]
    if not (all(isinstance(x, str) for x in texts) or all(map(_is_tokens, texts))):
        raise RequestError(
            f"{name} must be a text, a list of texts, token ids, or a list of lists of them",
            param=name,
        )
    return texts


def _checked(content: Mapping[str, Any], fields: Mapping[str, _Field]) -> dict[str, Any]:
    """Return the fields that have a value."""
    # OpenAI's own clients send null for what is not given.
    present = {name: x for name, x in content.items() if x is not None and name not in _IGNORED}
    for name, value in present.items():
        if name in fields:
            accepts, kind = fields[name]
            if not accepts(value):
                raise RequestError(f"{name}={value!r:.80} must be {kind}", param=name)
        elif name not in _NEUTRAL:
            raise RequestError(f"there is no field {name!r:.80}", param=name)
        # False is 0 in Python.
        elif not any(
            value == x and isinstance(value, bool) is isinstance(x, bool) for x in _NEUTRAL[name]
        ):
            raise RequestError(f"{name}={value!r:.80} is not supported", param=name)
    return present


def _asked(given: Mapping[str, Any], prompts: Sequence[Any], max_tokens: int | None) -> Asked:
    count = given.get("n", 1)
    if count * len(prompts) > _MOST_CHOICES:
        raise RequestError(f"prompts and n ask for more than {_MOST_CHOICES} answers", param="n")
    usage = given.get("stream_options", {}).get("include_usage", False)
    if "stream_options" in given and not given.get("stream"):
        raise RequestError("stream_options needs stream", param="stream_options")
    stop, form = given.get("stop", []), given.get("response_format")
    return Asked(
        prompts,
        count,
        max_tokens,
        _options(given),
        [stop] if isinstance(stop, str) else stop,
        given.get("stream", False),
        usage is True,
        form=form if form and form["type"] != "text" else None,
    )


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {name: given[name] for name in ("seed",) if name in given}
    if "repetition_penalty" in given:  # transformers takes no integer
        options["repetition_penalty"] = float(given["repetition_penalty"])
    # OpenAI's default
    temperature = float(given.get("temperature", 1.0))
    if temperature == 0:
        return {**options, "do_sample": False}
    numbers = {name: float(given[name]) for name in ("top_p", "min_p") if name in given}
    top_k = {"top_k": given["top_k"]} if given.get("top_k") else {}
    return {**options, **numbers, **top_k, "temperature": temperature}


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(x) is int for x in value)


def _message(value: Any, place: str) -> dict[str, Any]:
    """Return a message as chat templates read it."""
    role = value.get("role") if isinstance(value, dict) else None
    if not isinstance(role, str) or role not in _ROLES:
        raise RequestError(f"{place}: role must be {', '.join(_ROLES)}", param=f"{place}.role")
    message: dict[str, Any] = {"role": _ROLES[role], "content": _content(value, place)}
    if calls := value.get("tool_calls"):
        message["tool_calls"] = _calls(calls, f"{place}.tool_calls")
    for name in ("name", "tool_call_id"):
        if isinstance(value.get(name), str):
            message[name] = value[name]
    return message


def _content(message: Mapping[str, Any], place: str) -> str:
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and _is_text(part)]
    if len(texts) < len(parts):
        raise RequestError(f"{place}: content must be text", param=f"{place}.content")
    return "".join(map(str, texts))


def _is_text(part: Mapping[str, Any]) -> bool:
    return part.get("type") == "text" and isinstance(part.get("text"), str)


def _calls(calls: Any, place: str) -> list[dict[str, Any]]:
    """Return calls of tools with arguments as objects, which chat templates write down."""
    read = []
    for call in _listed(calls):
        function: dict[str, Any] = (call.get("function") if isinstance(call, dict) else None) or {}
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(f"{place} must be a list of calls of functions", param=place)
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            arguments = read_object(arguments.encode(errors="surrogatepass"))
        read.append({**call, "function": {**function, "arguments": arguments}})
    return read


def _listed(value: Any) -> list[Any]:
    """Return a list, or one with something that is not valid."""
    return value if isinstance(value, list) else [None]
