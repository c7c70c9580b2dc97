"""Calls of tools in the text of an answer, in the forms that models are trained to write."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_BEGIN = "<tool_call>"
_TAGGED = re.compile(rf"{_BEGIN}\s*(.*?)\s*(?:</tool_call>|\Z)\s*", re.DOTALL)
"""Hermes and Qwen: each call is an object between tags, after text or alone."""
_HERMES, _LLAMA = (f"{_BEGIN}\n", "arguments", "\n</tool_call>"), ("", "parameters", "")
_BETWEEN = re.compile(r"[\s;]*")
"""Llama 3: the whole answer is an object with ``parameters``, or several with semicolons."""


def written_form(template: str) -> tuple[str, str, str] | None:
    """Return how a model writes calls, by its chat template; None if that is not known.

    Returns:
        The text before a call, the name of its arguments, and the text after it.
    """
    if _BEGIN in template:
        return _HERMES
    return _LLAMA if '"parameters"' in template else None


def _no_json(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_no_json)


@dataclass
class CalledTools:
    """The calls in an answer, and the text around them.

    Attributes:
        names: The tools; what calls another one is text.
        calls: The calls so far, as OpenAI writes them.
        held: Text that may be the beginning of a call.
        has_shown: Whether there was text before it.
    """

    names: frozenset[str]
    calls: list[dict[str, Any]] = field(default_factory=list)
    held: str = ""
    has_shown: bool = False

    def add(self, piece: str) -> str:
        """Return the text that is not part of a call."""
        text = self.held + piece
        begin = self._begin(text)
        self.held, shown = text[begin:], text[:begin]
        self.has_shown |= bool(shown)
        return shown

    def rest(self) -> str:
        """Read the calls when no text follows, and return what is left of it."""
        text, self.held = self.held, ""
        if not self.has_shown and (calls := self._read(text)):
            self.calls = calls
            return ""
        return _TAGGED.sub(self._without_call, text)

    def _begin(self, text: str) -> int:
        """Return where a call may begin."""
        if not self.has_shown and text.lstrip()[:1] in ("", "{"):
            return 0
        if (place := text.find(_BEGIN)) >= 0:
            return place
        sizes = (n for n in range(len(_BEGIN), 0, -1) if text.endswith(_BEGIN[:n]))
        return len(text) - next(sizes, 0)

    def _without_call(self, match: re.Match[str]) -> str:
        calls = self._read(match[1])
        self.calls += calls
        return "" if calls else match[0]

    def _read(self, text: str) -> list[dict[str, Any]]:
        """Return the calls that a text consists of; none if it has anything else."""
        try:
            return [self._call(value) for value in _values(text)]
        except (ValueError, RecursionError):
            return []

    def _call(self, value: Any) -> dict[str, Any]:
        name = value.get("name") if isinstance(value, dict) else None
        arguments = value.get("arguments", value.get("parameters", {})) if name else None
        if not isinstance(name, str) or name not in self.names or not isinstance(arguments, dict):
            raise ValueError("not a call of these tools")
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}


def _values(text: str) -> Iterator[Any]:
    place = 0
    text = text.strip()
    while place < len(text):
        value, place = _JSON.raw_decode(text, place)
        yield value
        between = _BETWEEN.match(text, place)
        place = between.end() if between else place
