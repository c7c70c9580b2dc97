"""What a sweep of onnx's backend models found, and the small form that is committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coreai_onnx.targets.opsets import TARGETS
from tools.backend.measuring import NOT_RUN
from tools.operators.crew import Found
from tools.operators.journal import Key
from tools.operators.measuring import PASS, SEVERITY

RECORD = Path(__file__).with_name("results.json")
"""The committed result, from which docs/foreign_models.md is made."""
_ORDER = (PASS, NOT_RUN, *SEVERITY[1:])


@dataclass(frozen=True)
class Job:
    """A model.

    Attributes:
        model: Its name, ``node/test_abs``.
    """

    model: str

    @property
    def key(self) -> Key:
        """What names the job."""
        return (self.model,)


@dataclass(frozen=True)
class Records:
    """Findings by model: one for each target.

    Attributes:
        found: The findings.
    """

    found: Mapping[Key, Found]

    def failures(self) -> list[tuple[str, str, str, str]]:
        """Return model, target, status and detail of what went wrong."""
        return [
            (key[0], target, call["status"], call["detail"])
            for key, calls in sorted(self.found.items())
            for target, call in zip(TARGETS, calls, strict=True)
            if call["status"] not in (PASS, NOT_RUN)
        ]

    def totals(self) -> dict[str, dict[str, int]]:
        """Return, by target, how many models end how."""
        counts = [Counter(c[i]["status"] for c in self.found.values()) for i in range(len(TARGETS))]
        return {
            target: {status: counts[i][status] for status in _ORDER if counts[i][status]}
            for i, target in enumerate(TARGETS)
        }

    def summary(self) -> dict[str, Any]:
        """Return the small form: totals by target and kind, why models are not run, failures."""
        reasons = Counter(
            calls[0]["detail"].partition(":")[0]
            for calls in self.found.values()
            if calls[0]["status"] == NOT_RUN
        )
        return {
            "measured": len(self.found),
            "kinds": dict(Counter(key[0].partition("/")[0] for key in self.found)),
            "targets": self.totals(),
            "not run": dict(reasons.most_common()),
            "left": [
                {"model": model, "target": target, "status": status, "detail": detail}
                for model, target, status, detail in self.failures()
            ],
        }
