"""What a sweep of other libraries found, in totals and in the small form that is committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.operators.crew import Found
from tools.operators.journal import Key
from tools.operators.measuring import NOT_EXPORTED, PASS, SEVERITY, SKIPPED

RECORD = Path(__file__).with_name("results.json")
"""The committed result, from which docs/foreign_models.md is made."""
OURS, TORCH_ONNX = 0, 1
_WITHOUT_PROGRAM = (NOT_EXPORTED, SKIPPED)
_NOT_REPEATED = "not repeated: torch.export does not export the model in float32"
_ORDER = (*SEVERITY, NOT_EXPORTED, SKIPPED)


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

    @property
    def key(self) -> Key:
        """What names the job."""
        return (self.case, self.dtype)


@dataclass(frozen=True)
class Records:
    """Findings by case and dtype.

    Attributes:
        found: What our exporter gave, then torch's, if it was measured.
        libraries: Case to library.
    """

    found: Mapping[Key, Found]
    libraries: Mapping[str, str]

    def holds(self, job: Job) -> bool:
        """Whether everything that a job asks for was found."""
        asked = TORCH_ONNX if job.beside else OURS
        found = self.found.get(job.key, [])
        return len(found) > asked or (bool(found) and self.status(job.key) in _WITHOUT_PROGRAM)

    def status(self, key: Key, exporter: int = OURS) -> str:
        """Return what became of a case; ``skipped`` if it was not measured."""
        found = self.found.get(key, [])
        return str(found[exporter]["status"]) if len(found) > exporter else SKIPPED

    def not_repeated(self, job: Job) -> Found | None:
        """Return the finding for a half precision of what is not exported in float32, else None."""
        if job.dtype == "float32" or self.status((job.case, "float32")) != NOT_EXPORTED:
            return None
        return [{"status": NOT_EXPORTED, "detail": _NOT_REPEATED, "resized": {}, "seconds": 0.0}]

    def failures(self) -> list[tuple[Key, str, str]]:
        """Return case and dtype, status and detail of what torch.export takes and we do not."""
        bad = [k for k in self.found if self.status(k) in SEVERITY and self.status(k) != PASS]
        return [(k, self.status(k), self.found[k][OURS]["detail"]) for k in sorted(bad)]

    def without(self, status: str) -> list[tuple[str, str, str]]:
        """Return case, dtype and reason of the runs that torch itself ends with a status.

        Args:
            status: ``skipped`` if the model has no result, ``not exported`` if it has no program.
        """
        keys = [k for k in sorted(self.found) if self.found[k] and self.status(k) == status]
        return [(case, dtype, self.found[case, dtype][OURS]["detail"]) for case, dtype in keys]

    def beside(self) -> int:
        """Return how many cases both exporters were measured on."""
        return sum(len(found) > TORCH_ONNX for found in self.found.values())

    def summary(self) -> dict[str, Any]:
        """Return the small form: counts by library and dtype, each failure."""
        rows = {}
        for library in dict.fromkeys(self.libraries.values()):
            keys = [k for k in self.found if self.libraries.get(k[0]) == library]
            rows[library] = {d: self._counts(keys, d) for d in dict.fromkeys(k[1] for k in keys)}
            rows[library]["torch.onnx"] = self._counts(keys, "float32", TORCH_ONNX)
        ours = (found[OURS]["resized"] for found in self.found.values() if found)
        second = Counter(sizes["second size"] for sizes in ours if "second size" in sizes)
        left = [
            {"case": key[0], "dtype": key[1], "status": status, "detail": detail}
            for key, status, detail in self.failures()
        ]
        return {
            "libraries": rows,
            "second size": dict(sorted(second.items())),
            "beside": self.beside(),
            "left": left,
            "not exported by torch": [
                [case, detail]
                for case, dtype, detail in self.without(NOT_EXPORTED)
                if dtype == "float32"
            ],
            "without a result in torch": [list(row) for row in self.without(SKIPPED)],
        }

    def table(self) -> str:
        """Return the counts as text: a line per library and dtype."""
        lines = []
        for library, row in self.summary()["libraries"].items():
            for dtype, counts in row.items():
                cells = ", ".join(f"{count} {status}" for status, count in counts.items())
                lines.append(f"{library:18}{dtype:12}{cells}")
        return "\n".join(lines)

    def _counts(self, keys: list[Key], dtype: str, exporter: int = OURS) -> dict[str, int]:
        counts = Counter(self.status(k, exporter) for k in keys if k[1] == dtype)
        return {status: counts[status] for status in _ORDER if counts[status]}
