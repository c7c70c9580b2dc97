"""A process that measures models from its input and writes one line of JSON per target.

It speaks as tools.operators.worker does; the calls of a job are the targets.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

from coreai_onnx.targets.opsets import TARGETS
from tools.backend.measuring import NOT_RUN, measure, run_stock
from tools.backend.models import backend_models
from tools.operators.measuring import CONVERSION_FAILED
from tools.operators.reporting import reporter


def main() -> None:
    """Serve jobs until the input ends."""
    say = reporter()
    models = backend_models()

    say(done=True)
    for text in sys.stdin:
        job = json.loads(text)
        model, first = models[job["model"]], job["first"]
        say(call=first, step=NOT_RUN)
        before = run_stock(model)
        for call in range(first, len(TARGETS)):
            say(call=call, step=CONVERSION_FAILED)
            outcome = measure(model, TARGETS[call], before)
            say(call=call, **dataclasses.asdict(outcome))
        say(done=True)


if __name__ == "__main__":
    main()
