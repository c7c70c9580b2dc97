"""What a sweep found: per entry and dtype, in totals, and in the small form that is committed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.operators.crew import Found
from tools.operators.measuring import NOT_EXPORTED, PASS, REJECTED, SEVERITY, worst

RECORD = Path(__file__).with_name("results.json")
"""The committed result, from which docs/operators.md is made."""


@dataclass
class Sweep:
    """The findings of one sweep.

    Attributes:
        found: Per entry and dtype, per call.
    """

    found: dict[str, dict[str, Found]] = field(default_factory=dict)

    def add(self, entry: str, dtype: str, calls: Found) -> None:
        """Add the findings of an entry in a dtype; none if torch has none."""
        row = self.found.get(entry, {})
        row.pop(dtype, None)
        if calls:
            self.found.setdefault(entry, {})[dtype] = calls

    @property
    def dtypes(self) -> list[str]:
        """The dtypes, in order of first finding."""
        return list(dict.fromkeys(d for row in self.found.values() for d in row))

    def status(self, entry: str, dtype: str | None = None) -> str:
        """Return the worst status of an entry, in one dtype or in all."""
        row = self.found[entry]
        chosen = [row[dtype]] if dtype else row.values()
        return worst([call["status"] for calls in chosen for call in calls])

    def totals(self, dtype: str | None = None) -> Counter[str]:
        """Count entries by status."""
        names = (n for n, row in self.found.items() if dtype is None or dtype in row)
        return Counter(self.status(n, dtype) for n in names)

    def failures(self) -> list[tuple[str, str, str, str]]:
        """Return entry, dtype, status and detail of what does not pass, worst call first."""
        rows = []
        for entry, row in sorted(self.found.items()):
            for dtype, calls in row.items():
                status = self.status(entry, dtype)
                if status in SEVERITY[1:]:
                    detail = next(c["detail"] for c in calls if c["status"] == status)
                    rows.append((entry, dtype, status, detail))
        return rows

    def open(self) -> set[tuple[str, str]]:
        """Return the entries and dtypes that do not pass."""
        return {(entry, dtype) for entry, dtype, *_ in self.failures()}

    def resized(self) -> Counter[str]:
        """Count the runs at other sizes by what became of them (``size 1: pass``)."""
        calls = (c for row in self.found.values() for found in row.values() for c in found)
        return Counter(f"{label}: {s}" for c in calls for label, s in c["resized"].items())

    def summary(self) -> dict[str, Any]:
        """Return the small form: totals, and one line for each entry that does not pass."""
        overall = {"entries": shares(self.totals())}
        overall |= {dtype: shares(self.totals(dtype)) for dtype in self.dtypes}
        reasons: dict[str, dict[str, Any]] = {}
        for entry, dtype, status, detail in self.failures():
            row = reasons.setdefault(entry, {"status": status, "dtypes": [], "detail": detail})
            row["dtypes"].append(dtype)
        summary: dict[str, Any] = {"totals": overall, "left": reasons}
        summary["not exported"] = [n for n in sorted(self.found) if self.status(n) == NOT_EXPORTED]
        if resized := self.resized():
            summary["resized"] = dict(sorted(resized.items()))
        return summary


def shares(totals: Counter[str]) -> dict[str, int]:
    """Return how many entries torch exports, how many pass, and how the others end."""
    measured = {s: totals[s] for s in SEVERITY if totals[s] and s != PASS}
    exported = totals[PASS] + sum(measured.values())
    return {"exported": exported, PASS: totals[PASS], **measured}


def table(sweep: Sweep) -> str:
    """Return the totals as text, a line per dtype."""
    rows = [("all dtypes", sweep.totals()), *((d, sweep.totals(d)) for d in sweep.dtypes)]
    head = f"{'':12}{'exported':>10}" + "".join(f"{s:>19}" for s in SEVERITY)
    lines = [head]
    for name, totals in rows:
        exported = shares(totals)["exported"]
        cells = "".join(f"{totals[s]:>19}" for s in SEVERITY)
        lines.append(f"{name:12}{exported:>10}{cells}")
    other = sweep.resized()
    if other:
        lines += ["", "runs at other sizes"]
        lines += [f"  {label:28}{count:>6}" for label, count in sorted(other.items())]
        tried = sum(other.values()) - sum(n for k, n in other.items() if k.endswith(REJECTED))
        lines.append(f"  {'compared':28}{tried:>6}")
    return "\n".join(lines)


def record(summaries: dict[str, Any]) -> None:
    """Write summaries by kind of run into the committed file; other kinds stay."""
    known = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    text = json.dumps(known | summaries, indent=1, sort_keys=True)
    RECORD.write_text(text + "\n", encoding="utf-8")


def load(path: Path) -> Sweep:
    """Return a sweep that was saved."""
    return Sweep(json.loads(path.read_text(encoding="utf-8"))["found"])


def save(sweep: Sweep, path: Path, about: dict[str, Any]) -> None:
    """Save a sweep with what it measured."""
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps({"about": about, "found": sweep.found}), encoding="utf-8")
    partial.replace(path)
