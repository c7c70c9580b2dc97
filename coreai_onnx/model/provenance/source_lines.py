"""The text of the user's source lines that nodes come from, in a model's metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping

CODE = "coreai.code"
"""Model metadata: file to line number to text, ``{"moe.py": {"41": "out = self.gate(x)"}}``."""
_LONGEST = 200
"""Characters of a line that are kept."""


def code_entry(lines: Mapping[str, str]) -> str:
    """Return the entry of the metadata.

    Args:
        lines: Source, ``moe.py:41``, to the text of the line.
    """
    files: dict[str, dict[str, str]] = {}
    for source, code in lines.items():
        file, _, line = source.rpartition(":")
        files.setdefault(file, {})[line] = code[:_LONGEST]
    return json.dumps(files, ensure_ascii=False, separators=(",", ":"))


def read_code(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the text of the lines that are known; nothing if another tool changed the entry."""
    try:
        files = json.loads(metadata.get(CODE) or "{}")
        return {
            f"{file}:{line}": str(code)
            for file, lines in dict(files).items()
            for line, code in dict(lines).items()
        }
    except (ValueError, TypeError, RecursionError):
        return {}
