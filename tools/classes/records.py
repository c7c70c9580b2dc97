"""What a sweep of transformers' classes found, in the small form that is committed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers

from tools.classes.listing import Job, every_class
from tools.operators.crew import Found
from tools.operators.journal import Key
from tools.operators.measuring import NOT_EXPORTED, PASS, SEVERITY, SKIPPED

RECORD = Path(__file__).with_name("results.json")
"""The committed result, from which docs/transformers_classes.md is made."""
OURS, GENERATION, TRANSFORMERS = range(3)
_WITHOUT_PROGRAM = (NOT_EXPORTED, SKIPPED)


def holds(found: Found, job: Job, steps: int) -> bool:
    """Return whether everything that is asked for was found.

    Args:
        found: What was found of the class.
        job: The class.
        steps: How many measurements are asked for of it.
    """
    asked = min(steps, 3 if job.beside else 2)
    return len(found) >= asked or (bool(found) and found[OURS]["status"] in _WITHOUT_PROGRAM)


def is_measured(found: Found) -> bool:
    """Return whether a class was built; rules on its configuration may have changed since."""
    return bool(found) and found[OURS]["status"] != SKIPPED


def failures(known: Mapping[Key, Found]) -> list[tuple[str, str, str]]:
    """Return class, status and detail of what torch.export takes and we do not."""
    bad = []
    for (name,), found in sorted(known.items()):
        for step, row in enumerate(found[: GENERATION + 1]):
            if row["status"] in SEVERITY and row["status"] != PASS:
                where = "generate: " if step == GENERATION else ""
                bad.append((name, row["status"], where + row["detail"]))
    return bad


def summary(known: Mapping[Key, Found]) -> dict[str, Any]:
    """Return counts, and a row for each class that was measured."""
    jobs = [job for job in every_class() if known.get(job.key)]
    rows = [_row(job, known[job.key]) for job in sorted(jobs, key=lambda job: job.name)]
    steps = (OURS, GENERATION, TRANSFORMERS)
    counts = [Counter(f[s]["status"] for f in known.values() if len(f) > s) for s in steps]
    return {
        "transformers": transformers.__version__,
        "classes": len(every_class()),
        "types": len({job.model_type for job in every_class()}),
        "measured": len(rows),
        "counts": [dict(sorted(each.items())) for each in counts],
        "rows": rows,
    }


def _row(job: Job, found: Found) -> dict[str, Any]:
    row: dict[str, Any] = {"name": job.name, "type": job.model_type}
    row["inputs"] = found[OURS].get("inputs", [])
    row["second size"] = found[OURS]["resized"].get("second size", "")
    # A reason that was raised as the reason of another error has the names of both.
    details = [re.sub(r"^(ValueError: )+(?=\w+Error: )", "", each["detail"]) for each in found]
    row["results"] = [[f["status"], d[:200]] for f, d in zip(found, details, strict=True)]
    return row
