"""Prints the stages of a long command to stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from coreai_onnx.messages import reported_to


@contextmanager
def stages_shown() -> Iterator[None]:
    """While active, print each stage with the elapsed seconds; print nothing without a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    start = time.monotonic()

    def show(stage: str) -> None:
        print(f"{time.monotonic() - start:6.1f} s  {stage}", file=sys.stderr, flush=True)

    with reported_to(show):
        yield
