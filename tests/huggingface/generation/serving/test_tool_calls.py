"""Calls of tools in the text of an answer, however it is cut into pieces."""

from __future__ import annotations

import json

import pytest

from coreai_onnx.huggingface.generation.serving.tool_calls import CalledTools

ADD = '{"name": "add", "arguments": {"x": 1, "y": "ä"}}'
HERMES = f"<tool_call>\n{ADD}\n</tool_call>"
LLAMA = '{"name": "add", "parameters": {"x": 1, "y": "ä"}}'
CALL = ("add", {"x": 1, "y": "ä"})


def read(text: str, size: int) -> tuple[str, list[tuple[str, object]]]:
    called = CalledTools(frozenset({"add", "now"}))
    shown = "".join(called.add(text[i : i + size]) for i in range(0, len(text), size))
    shown += called.rest()
    for call in called.calls:
        assert call["type"] == "function"
        assert call["id"].startswith("call_")
    assert len({call["id"] for call in called.calls}) == len(called.calls)
    functions = [call["function"] for call in called.calls]
    return shown, [(x["name"], json.loads(x["arguments"])) for x in functions]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "shown", "calls"),
    [
        ("Hello <tool", "Hello <tool", []),
        ("", "", []),
        (HERMES, "", [CALL]),
        (f"I add.\n{HERMES}", "I add.\n", [CALL]),
        (f"{HERMES}\n<tool_call>\n" + '{"name": "now"}\n</tool_call>', "", [CALL, ("now", {})]),
        # Models leave the last tag out.
        (f"<tool_call>{ADD}", "", [CALL]),
        (LLAMA, "", [CALL]),
        (f" {LLAMA}; {LLAMA}\n", "", [CALL, CALL]),
        # These are not calls.
        ('{"age": 5}', '{"age": 5}', []),
        (f"{LLAMA} and more", f"{LLAMA} and more", []),
        (f"Say {LLAMA}", f"Say {LLAMA}", []),
        ('{"name": "other", "parameters": {}}', '{"name": "other", "parameters": {}}', []),
        ('{"name": "add", "parameters": 5}', '{"name": "add", "parameters": 5}', []),
        ('{"name": ["add"]}', '{"name": ["add"]}', []),
        ('{"name": "add", "parameters": {"x": NaN}}',) * 2 + ([],),
        ("<tool_call>{</tool_call>", "<tool_call>{</tool_call>", []),
        ("{" * 3000, "{" * 3000, []),
        (f"<tool_call>nothing</tool_call>{HERMES}", "<tool_call>nothing</tool_call>", [CALL]),
    ],
)
def test_calls(text: str, size: int, shown: str, calls: list[object]) -> None:
    assert read(text, size) == (shown, calls)


def test_text_is_shown_at_once() -> None:
    called = CalledTools(frozenset({"add"}))
    assert called.add("Hi <") == "Hi "
    assert called.add("b>") == "<b>"
    assert called.add("{") == "{"
