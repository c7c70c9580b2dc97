"""A process that measures jobs from its input and writes one line of JSON per call.

Lines are ``{"call": 0, "step": …}`` before each step and ``{"call": 0, "status": …, …}`` after
the call, then ``{"done": true}``; what the process was doing when it died is thus known.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from tools.operators.entries import calls, entries
from tools.operators.measuring import SKIPPED, Outcome, measure
from tools.operators.reporting import reporter


def main() -> None:
    """Serve jobs until the input ends."""
    say = reporter()
    torch.set_num_threads(1)
    infos = entries()

    say(done=True)
    for line in sys.stdin:
        job = json.loads(line)
        serve(infos[job["entry"]], job, say)
        say(done=True)


def serve(info: Any, job: dict[str, Any], say: Any) -> None:
    """Measure the calls of one entry in one dtype, from the one the job says."""
    dtype = getattr(torch, job["dtype"])
    if not info.supports_dtype(dtype, "cpu"):
        return
    try:
        found = calls(info, dtype, job["samples"])
    except Exception as error:  # noqa: BLE001 - a sample function may need what is not installed
        say(call=0, **dataclasses.asdict(Outcome(SKIPPED, f"no samples: {error}"[:200])))
        return
    for index, call in enumerate(found):
        if index >= job["first"]:
            outcome = measure(
                call,
                job["entry"],
                dynamic=job["dynamic"],
                progress=lambda step, i=index: say(call=i, step=step),
            )
            say(call=index, **dataclasses.asdict(outcome))


if __name__ == "__main__":
    main()
