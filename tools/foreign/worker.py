"""A process that measures models from its input and writes one line of JSON per exporter.

It speaks as tools.operators.worker does; call 0 is ours, call 1 is ``torch.onnx.export``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from tools.foreign.cases import named
from tools.foreign.measuring import Outcome, Subject, measure_ours
from tools.foreign.torch_onnx import measure_torch_onnx
from tools.foreign.torchvision_ops import declare_torchvision_ops
from tools.operators.measuring import NOT_EXPORTED, SKIPPED, line
from tools.operators.reporting import reporter

MEASURES = (measure_ours, measure_torch_onnx)


def main() -> None:
    """Serve jobs until the input ends."""
    say = reporter()
    torch.set_num_threads(1)
    declare_torchvision_ops()

    say(done=True)
    for text in sys.stdin:
        job = json.loads(text)
        serve(job, say)
        say(done=True)


def serve(job: dict[str, Any], say: Any) -> None:
    """Measure a case in a dtype with each exporter, from the one the job says."""
    say(call=job["first"], step=SKIPPED)
    try:
        subject = Subject(named(job["case"]), getattr(torch, job["dtype"]))
    except Exception as error:  # noqa: BLE001 - a model that torch cannot run is no finding
        say(call=job["first"], **dataclasses.asdict(Outcome(SKIPPED, line(error))))
        return
    beside = 2 if job["beside"] else 1
    for call in range(job["first"], beside):
        start = time.process_time()

        def progress(step: str, call: int = call) -> None:
            say(call=call, step=step)

        outcome = MEASURES[call](subject, progress)
        outcome.seconds = round(time.process_time() - start, 1)
        say(call=call, **dataclasses.asdict(outcome))
        if outcome.status == NOT_EXPORTED:
            return


if __name__ == "__main__":
    main()
