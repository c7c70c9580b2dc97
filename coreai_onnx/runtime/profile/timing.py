"""Interleaved timing of several callables."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coreai_onnx.messages import render


@dataclass(frozen=True)
class Timing:
    """Durations of the calls of one callable, in seconds."""

    name: str
    seconds: tuple[float, ...]

    @property
    def min(self) -> float:
        """The fastest call in seconds, which is the least affected by other load."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The median call in seconds."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Timings:
    """Timings of several callables in one run; the first is the reference.

    Prints as a table of minimum, median and the ratio of medians to the first.
    """

    rows: tuple[Timing, ...]

    def __getitem__(self, name: str) -> Timing:
        """Return the timing of the callable called ``name``.

        Raises:
            KeyError: If there is no such callable.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def __str__(self) -> str:
        """Return the table."""
        first = self.rows[0].median
        cells = [
            (
                row.name,
                f"{row.min * 1e3:.3f} ms",
                f"{row.median * 1e3:.3f} ms",
                f"{first / row.median:.2f}x",
            )
            for row in self.rows
        ]
        return render(("", "min", "median", f"speed, {self.rows[0].name} = 1"), cells)


def time_interleaved(
    callables: Mapping[str, Callable[[], object]], *, repeats: int = 30, warmup: int = 3
) -> Timings:
    """Time callables in turn, so that a change of the machine's speed affects all of them equally.

    The order is reversed every other round. The garbage collector is off while timing.

    Args:
        callables: Name to callable without arguments; the first is the reference.
        repeats: Number of rounds.
        warmup: Number of rounds before, which are not timed.

    Raises:
        ValueError: If there is nothing to time.
    """
    if not callables or repeats < 1:
        raise ValueError("give at least one callable and one repeat")
    for _ in range(warmup):
        for call in callables.values():
            call()
    seconds: dict[str, list[float]] = {name: [] for name in callables}
    names = list(callables)
    # A collection would be part of the time of whichever call it interrupts.
    collecting = gc.isenabled()
    gc.disable()
    try:
        for index in range(repeats):
            # Otherwise one callable would always run with what the same other one left in the
            # caches.
            for name in names if index % 2 == 0 else reversed(names):
                start = time.perf_counter()
                callables[name]()
                seconds[name].append(time.perf_counter() - start)
    finally:
        if collecting:
            gc.enable()
    return Timings(tuple(Timing(name, tuple(values)) for name, values in seconds.items()))
