"""One run of a session, and its deadline."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import onnxruntime as ort

from coreai_onnx.errors import SessionError


def execute(
    session: ort.InferenceSession,
    names: Sequence[str],
    feeds: Mapping[str, ort.OrtValue],
    targets: Mapping[str, ort.OrtValue],
    options: ort.RunOptions,
) -> dict[str, ort.OrtValue]:
    """Run a model and return all its outputs by name.

    Args:
        session: The model.
        names: The names of its outputs.
        feeds: The inputs by name.
        targets: Values that outputs are written to, by the names of the outputs; onnxruntime
            allocates the others.
        options: Options of the run.

    Raises:
        SessionError: If onnxruntime fails.
    """
    try:
        if not targets:
            results = session.run_with_ort_values(names, feeds, options)
            return dict(zip(names, results, strict=True))
        return _run_bound(session, names, feeds, targets, options)
    except Exception as error:  # onnxruntime's exceptions share no base class below Exception
        raise SessionError(f"onnxruntime failed while running\n  {error}") from error


def _run_bound(
    session: ort.InferenceSession,
    names: Sequence[str],
    feeds: Mapping[str, ort.OrtValue],
    targets: Mapping[str, ort.OrtValue],
    options: ort.RunOptions,
) -> dict[str, ort.OrtValue]:
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, value)
    allocated = [name for name in names if name not in targets]
    for name in allocated:
        binding.bind_output(name)
    for name, value in targets.items():
        binding.bind_ortvalue_output(name, value)
    session.run_with_iobinding(binding, options)
    # get_outputs() would make a second value for each target, which costs 2 µs each.
    results = binding.get_outputs_as_ortvaluevector()
    return {name: ort.OrtValue(results[i]) for i, name in enumerate(allocated)} | dict(targets)


@contextmanager
def deadline(seconds: float | None) -> Iterator[ort.RunOptions]:
    """Yield run options that end a run after a time.

    onnxruntime checks them before each node, also in the body of a ``Loop``; a single operator is
    not interrupted.

    Args:
        seconds: The time; None means no limit.

    Raises:
        SessionError: The run did not end in time.
    """
    options = ort.RunOptions()
    if seconds is None:
        yield options
        return
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
