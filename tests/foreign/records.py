"""What was found: a file of JSON lines while a sweep runs, and the small form that is committed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.coverage.crew import Found
from tests.coverage.measuring import NOT_EXPORTED, PASS, REJECTED, SEVERITY, SKIPPED

RECORD = Path(__file__).with_name("results.json")
"""The committed result, from which docs/foreign_models.md is made."""
OURS, TORCH_ONNX = 0, 1


@dataclass(frozen=True)
class Job:
    """A case in one dtype.

    Attributes:
        case: Name of the case.
        dtype: ``float32``.
        beside: Whether ``torch.onnx.export`` is measured as well.
    """

    case: str
    dtype: str
    beside: bool = False


Key = tuple[str, str]
"""Name of a case and dtype."""


@dataclass
class Records:
    """Findings by case and dtype; a later one takes the place of an earlier one.

    Attributes:
        found: Per case and dtype: what our exporter gave, then torch's, if it was measured.
    """

    found: dict[Key, Found] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Records:
        """Read a file of JSON lines; one that is cut off in its last line counts up to there."""
        records = cls()
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        for line in lines:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            records.found[row["case"], row["dtype"]] = row["found"]
        return records

    def add(self, path: Path, job: Job, found: Found) -> None:
        """Add findings and append them to the file."""
        self.found[job.case, job.dtype] = found
        row = {"case": job.case, "dtype": job.dtype, "found": found}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def holds(self, job: Job) -> bool:
        """Whether everything that a job asks for was found."""
        found = self.found.get((job.case, job.dtype), [])
        return len(found) > (TORCH_ONNX if job.beside else OURS) or (
            bool(found) and found[OURS]["status"] == SKIPPED
        )

    def status(self, key: Key, exporter: int = OURS) -> str:
        """Return what became of a case; ``skipped`` if it was not measured."""
        found = self.found.get(key, [])
        return str(found[exporter]["status"]) if len(found) > exporter else SKIPPED

    def failures(self) -> list[tuple[Key, str, str]]:
        """Return case and dtype, status and detail of what torch.export takes and we do not."""
        bad = [k for k in self.found if self.status(k) in SEVERITY and self.status(k) != PASS]
        return [(k, self.status(k), self.found[k][OURS]["detail"]) for k in sorted(bad)]

    def of(self, keys: Iterable[Key]) -> Records:
        """Return the findings of some keys, those that there are."""
        return Records({key: self.found[key] for key in keys if key in self.found})

    def summary(self, libraries: Mapping[str, str]) -> dict[str, Any]:
        """Return the small form.

        Args:
            libraries: Case to library.
        """
        rows: dict[str, dict[str, dict[str, int]]] = {}
        for library in dict.fromkeys(libraries.values()):
            keys = [k for k in self.found if libraries.get(k[0]) == library]
            row = {dtype: self._counts(keys, dtype) for dtype in sorted({k[1] for k in keys})}
            rows[library] = row | {"torch.onnx": self._counts(keys, "float32", TORCH_ONNX)}
        left = [
            {"case": case, "dtype": dtype, "status": status, "detail": detail}
            for (case, dtype), status, detail in self.failures()
        ]
        resized = Counter(
            f[OURS]["resized"].get("second size", "") for f in self.found.values() if f
        )
        return {
            "libraries": rows,
            "left": left,
            "second size": {REJECTED: resized[REJECTED], PASS: resized[PASS]},
        }

    def _counts(self, keys: list[Key], dtype: str, exporter: int = OURS) -> dict[str, int]:
        order = (*SEVERITY, NOT_EXPORTED, SKIPPED)
        counts = Counter(self.status(k, exporter) for k in keys if k[1] == dtype)
        return {status: counts[status] for status in order if counts[status]}


def table(records: Records, libraries: Mapping[str, str]) -> str:
    """Return the counts as text: a line per library and dtype."""
    lines = []
    for library, row in records.summary(libraries)["libraries"].items():
        for dtype, counts in row.items():
            cells = ", ".join(f"{count} {status}" for status, count in counts.items())
            lines.append(f"{library:18}{dtype:12}{cells}")
    return "\n".join(lines)
