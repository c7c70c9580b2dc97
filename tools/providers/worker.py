"""A process that runs cases from its input and writes one line of JSON for each run.

It speaks as tools.operators.worker does; a job has one call.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from contextlib import ExitStack
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from tools.operators.measuring import CONVERSION_FAILED, RUN_FAILED, reason
from tools.operators.reporting import reporter
from tools.providers.cases import BROWSER, Job
from tools.providers.device import use_swiftshader
from tools.providers.measuring import Subject, run_in_browser, run_natively


def main() -> None:
    """Serve jobs until the input ends."""
    say = reporter()
    torch.set_num_threads(1)
    with ExitStack() as stack:

        @functools.cache
        def page() -> Any:
            from tools.providers.browser import Chromium  # CUDA needs no browser

            return stack.enter_context(Chromium())

        say(done=True)
        for text in sys.stdin:
            job = json.loads(text)
            # A call that ended its process is not repeated.
            if not job.pop("first"):
                serve(Job(**job), say, page)
            say(done=True)


def serve(job: Job, say: Any, page: Any) -> None:
    """Run a case where the job says."""
    if not job.on_cuda:
        use_swiftshader()
    say(call=0, step=CONVERSION_FAILED)
    start = time.monotonic()
    try:
        subject = Subject(job)
    except Exception as error:  # noqa: BLE001 - the failure is the result
        say(call=0, status=CONVERSION_FAILED, detail=reason(error))
        return
    say(call=0, step=RUN_FAILED)
    try:
        browser = job.place == BROWSER
        found = run_in_browser(subject, page()) if browser else run_natively(subject)
    except Exception as error:  # noqa: BLE001 - the failure is the result
        found = {"status": RUN_FAILED, "detail": reason(error)}
    say(call=0, seconds=round(time.monotonic() - start, 1), **found)


if __name__ == "__main__":
    main()
