"""The deadline of a run."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import onnxruntime as ort

from coreai_onnx.errors import SessionError


@contextmanager
def deadline(seconds: float | None) -> Iterator[ort.RunOptions | None]:
    """Yield run options that end a run after a time.

    onnxruntime checks them before each node, also in the body of a ``Loop``; a single operator is
    not interrupted.

    Args:
        seconds: The time; None means no limit.

    Raises:
        SessionError: The run did not end in time.
    """
    if seconds is None:
        yield None
        return
    options = ort.RunOptions()
    over = threading.Event()

    def end() -> None:
        # First, because the run may fail before the next line has returned.
        over.set()
        options.terminate = True

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield options
    except Exception as error:
        # onnxruntime raises the same exception for a terminated run as for a failed one.
        if not over.is_set():
            raise
        raise SessionError(
            f"the model did not finish within {seconds:g} s\n  raise the timeout if the model is "
            "slow; a Loop may be endless"
        ) from error
    finally:
        timer.cancel()


def checked_timeout(seconds: float | None) -> float | None:
    """Return a maximum time of a run in seconds.

    Raises:
        SessionError: It is not a positive number.
    """
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not _is_time(seconds):
        raise SessionError(f"timeout={seconds!r}; give a number of seconds greater than 0, or None")
    return seconds


def _is_time(seconds: float) -> bool:
    # threading.Timer raises OverflowError in its thread for a longer time.
    return math.isfinite(seconds) and 0 < seconds <= threading.TIMEOUT_MAX
