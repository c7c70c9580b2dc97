"""Source lines of users, and values that are results of the exported program."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping

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


VALUES = "coreai.values"
"""Model metadata: value to the result of the exported program, ``{"output": "softmax"}``."""


def values_entry(origins: Mapping[str, str]) -> str:
    """Return the entry of the metadata; empty if every value has the name of its result.

    Args:
        origins: Value name to result.
    """
    counts = Counter(origins.values())
    kept = {name: of for name, of in origins.items() if name != of or counts[of] > 1}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")) if kept else ""


def read_origins(
    metadata: Mapping[str, str], values: Collection[str], results: Collection[str]
) -> dict[str, str]:
    """Map each value to its result of the exported program; other values are left out.

    Args:
        metadata: The metadata of the model. An entry that another tool changed is ignored.
        values: Names of the values in the model.
        results: Names of the results of the exported program.
    """
    entry = _entry(metadata)
    # A value whose name is that of a result that another value is recorded for is not that result.
    renamed = set(entry.values())
    origins = {name: entry.get(name, "" if name in renamed else name) for name in values}
    return {name: of for name, of in origins.items() if of in results}


def read_inner_origins(metadata: Mapping[str, str], values: Collection[str]) -> dict[str, str]:
    """Map each value in the graphs of nodes to its result; other values are left out.

    Args:
        metadata: As for `read_origins`.
        values: Names of the values in graphs of nodes.
    """
    return {name: of for name, of in _entry(metadata).items() if name in values and "/" in of}


def _entry(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the entry of the metadata; empty if another tool has changed it."""
    try:
        items = json.loads(metadata.get(VALUES) or "{}").items()
        return {str(name): str(of) for name, of in items}
    except (AttributeError, ValueError, RecursionError):
        return {}
