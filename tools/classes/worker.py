"""A process that measures classes from its input and writes one line of JSON per measurement.

It speaks as tools.operators.worker does; call 0 is our conversion, call 1 the generation, call 2
transformers' own exporter.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import sys
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from tools.classes.measuring import (
    ClassSubject,
    measure_generation,
    measure_ours,
    measure_transformers,
)
from tools.foreign.measuring import Outcome
from tools.operators.measuring import NOT_EXPORTED, SKIPPED, line
from tools.operators.reporting import reporter

MEMORY = 12 << 30
"""Bytes of addresses that a worker may have."""
MEASURES = (measure_ours, measure_generation, measure_transformers)


def main() -> None:
    """Serve jobs until the input ends."""
    say = reporter()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    say(done=True)
    steps = int(sys.argv[1])
    for text in sys.stdin:
        serve(json.loads(text), say, steps)
        say(done=True)


def serve(job: dict[str, Any], say: Any, steps: int) -> None:
    """Measure a class, from the call that the job says, to the last of ``steps``."""
    say(call=job["first"], step=SKIPPED)
    try:
        subject = ClassSubject(job["model_type"], job["name"])
    except Exception as error:  # noqa: BLE001 - a model that torch cannot run is no finding
        say(call=job["first"], **dataclasses.asdict(Outcome(SKIPPED, line(error))))
        return
    for call in range(job["first"], min(steps, 3 if job["beside"] else 2)):
        start = time.process_time()

        def progress(step: str, call: int = call) -> None:
            say(call=call, step=step)

        outcome = MEASURES[call](subject, progress)
        outcome.seconds = round(time.process_time() - start, 1)
        say(call=call, inputs=sorted(subject.given[0]), **dataclasses.asdict(outcome))
        if outcome.status == NOT_EXPORTED and call == 0:
            return


if __name__ == "__main__":
    main()
