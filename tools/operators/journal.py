"""Findings kept as JSON lines, so that a sweep that ends early goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path

from tools.operators.crew import Found

Key = tuple[str, ...]
"""What names a job: a case and a dtype, or a model."""


class Journal:
    """Findings by job; a later one takes the place of an earlier one.

    Attributes:
        path: The file.
        found: Per job, per call.
    """

    def __init__(self, path: Path) -> None:
        """Read the file, if there is one; a last line that is cut off does not count."""
        self.path = path
        self.found: dict[Key, Found] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        for line in lines:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            self.found[tuple(row["job"])] = row["found"]

    def add(self, key: Key, found: Found) -> None:
        """Add findings and append them to the file."""
        self.found[key] = found
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"job": key, "found": found}) + "\n")
