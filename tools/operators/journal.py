"""Findings kept as JSON lines, so that a sweep that ends early goes on where it was."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tools.operators.crew import Found

ROOT = Path(__file__).resolve().parents[2]
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


def sweep_parser(description: str, name: str, only: str) -> argparse.ArgumentParser:
    """Return a parser with the options of a sweep that keeps a journal.

    Args:
        description: What the sweep does; its first line is shown.
        name: The name of the journal, and of the folder of the recorded results.
        only: The help of ``--only``.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--only", default="", help=only)
    parser.add_argument("--failed", action="store_true", help="repeat the failures")
    parser.add_argument("--fresh", action="store_true", help="discard earlier results")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / f"{name}.jsonl")
    parser.add_argument("--record", action="store_true", help=f"write tools/{name}/results.json")
    return parser
