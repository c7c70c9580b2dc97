"""Runs that may crash: in a process of their own, between guard pages."""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime as ort

from coreai_onnx.errors import SessionError
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.tensors.outputs import Array

How = Literal["guarded", "once", "again", "concurrent"]
"""How a call is made: between guard pages, in onnxruntime's memory, a further time after calls with
other inputs, or by several threads."""

_Report = list[tuple[int, tuple[Array, ...]]] | str
"""What the process reports of a step: runs and their outputs, or why one failed. Not of classes of
this module, which has another name in that process."""
_PACKAGES = Path(__file__).resolve().parents[2]
_EDGES: tuple[Edge, Edge] = ("end", "start")
_THREADS = 4
_CONCURRENT_SECONDS = 0.02
"""How long each model is called by several threads, at least once with each input."""
_REPEATS = 32
"""How often a run is made again if its arrays are small, for kernels that keep state."""
_SMALL = 1 << 14
"""Bytes of the arrays of such a run."""


@dataclass(frozen=True)
class TrialRun:
    """One run.

    Attributes:
        model: Index of the model.
        inputs: Its inputs, in order.
        outputs: Shape and dtype of the expected outputs.
    """

    model: int
    inputs: tuple[Array, ...]
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]


@dataclass(frozen=True)
class Trial:
    """Models to run with a library.

    Attributes:
        library: The custom op library.
        models: Serialized models.
        runs: The runs, in order.
    """

    library: Path
    models: Sequence[bytes]
    runs: Sequence[TrialRun]


@dataclass(frozen=True)
class TrialStep:
    """Calls after which the process reports: one call, or those of several threads.

    Attributes:
        how: How they are made.
        runs: Indices of the runs.
        edge: The edge of its arrays that is at a guard page, of a guarded call.
    """

    how: How
    runs: tuple[int, ...]
    edge: Edge = "end"


@dataclass(frozen=True)
class TrialOutputs:
    """The outputs of a call.

    Attributes:
        run: Index of the run.
        how: How the call was made.
        arrays: The outputs.
    """

    run: int
    how: How
    arrays: tuple[Array, ...]


@dataclass(frozen=True)
class TrialResult:
    """The results of a trial.

    Attributes:
        outputs: The outputs of each run, and those of further calls that differ from them in a bit,
            up to the first call that failed.
        failure: Why that call failed; empty if all succeeded.
        failed: That call.
    """

    outputs: Sequence[TrialOutputs]
    failure: str = ""
    failed: TrialStep | None = None


def run_trial(trial: Trial, *, timeout: float) -> TrialResult:
    """Run models in a new process, each run in all ways of `How`.

    Args:
        trial: The models, their inputs, and the library.
        timeout: Seconds after which the process is ended.
    """
    with tempfile.TemporaryDirectory(prefix="coreai_onnx_") as folder:
        request, results = Path(folder) / "trial", Path(folder) / "results"
        request.write_bytes(pickle.dumps(trial))
        # The process may crash before it opens the file.
        results.touch()
        path = os.pathsep.join(filter(None, [str(_PACKAGES), os.environ.get("PYTHONPATH")]))
        # -P keeps the current folder, where a file may have the name of a module, off sys.path.
        command = [sys.executable, "-P", "-m", __name__, str(request), str(results)]
        try:
            done = subprocess.run(  # noqa: S603 - this module
                command,
                env={**os.environ, "PYTHONPATH": path},
                capture_output=True,
                check=False,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            return _result(trial, results, f"it did not finish within {timeout:g} s")
        return _result(trial, results, _end(done.returncode, done.stderr.decode(errors="replace")))


def _result(trial: Trial, results: Path, end: str) -> TrialResult:
    """Return what the process reported; without a report of every step, it failed."""
    steps, reports = _steps(trial), _reports(results)
    outputs: list[TrialOutputs] = []
    for step, report in zip(steps, reports, strict=False):
        if isinstance(report, str):
            return TrialResult(outputs, report, step)
        outputs += [TrialOutputs(run, step.how, arrays) for run, arrays in report]
    if len(reports) < len(steps):
        step = steps[len(reports)]
        guarded = step.how == "guarded" and end.startswith(_CRASHED)
        return TrialResult(outputs, end + _OUTSIDE if guarded else end, step)
    return TrialResult(outputs, "" if end == _ENDED else end, steps[-1] if steps else None)


def _reports(results: Path) -> list[_Report]:
    """Return what the process wrote: the outputs of each step, or its error message."""
    reports: list[_Report] = []
    with results.open("rb") as file:
        while True:
            try:
                reports.append(pickle.load(file))  # noqa: S301 - written by this module
            except (EOFError, pickle.UnpicklingError):  # the process ended while it wrote
                return reports


_CRASHED = "the process crashed with "
_ENDED = "the process ended with exit status 0 in this call; a kernel returns, or throws OpError"
_OUTSIDE = (
    ": it reads or writes outside of its inputs and outputs, writes to an input, or needs an "
    "alignment that a caller's arrays may not have"
)


def _end(code: int, said: str) -> str:
    if not code:
        return _ENDED
    how = f"{_CRASHED}{signal.Signals(-code).name}" if code < 0 else f"exit {code}"
    return "\n".join([how, *said.splitlines()[-3:]])


def _steps(trial: Trial) -> list[TrialStep]:
    steps = []
    for index in range(len(trial.runs)):
        # Few arrays fill whole pages, so that only one edge of an array can be at a guard page.
        steps += [TrialStep("guarded", (index,), edge) for edge in _EDGES]
        steps.append(TrialStep("once", (index,)))
    # Reversed, so that each run follows another run than before: a kernel that keeps state from
    # call to call shows.
    steps += [TrialStep("again", (index,)) for index in reversed(range(len(trial.runs)))]
    of_model: dict[int, list[int]] = {}
    for index, run in enumerate(trial.runs):
        of_model.setdefault(run.model, []).append(index)
    return steps + [TrialStep("concurrent", tuple(runs)) for runs in of_model.values()]


# ---------------------------------------------------------------------- in the other process
@dataclass
class _Caller:
    """Makes the calls of a trial.

    Attributes:
        trial: The trial.
        first: The outputs of the first call of each run.
    """

    trial: Trial
    first: dict[int, tuple[Array, ...]] = field(default_factory=dict)
    _sessions: dict[int, Session] = field(default_factory=dict)

    def report(self, step: TrialStep) -> _Report:
        """Return the outputs that differ from those of the first call, or why a call failed."""
        try:
            if step.how == "concurrent":
                return [*self._concurrent(step.runs)]
            (index,) = step.runs
            guarded = step.how == "guarded"
            for _ in range(self._repeats(index) if step.how == "again" else 1):
                outputs = self._guarded(index, step.edge) if guarded else self._call(index)
                if self._is_new(index, outputs):
                    return [(index, outputs)]
        except SessionError as error:
            return str(error)
        return []

    def _repeats(self, index: int) -> int:
        arrays = (*self.trial.runs[index].inputs, *self.first[index])
        return _REPEATS if sum(x.nbytes for x in arrays) <= _SMALL else 1

    def _is_new(self, index: int, outputs: tuple[Array, ...]) -> bool:
        """Return whether outputs are the first of a run, or differ from the first in a bit."""
        first = self.first.setdefault(index, outputs)
        return first is outputs or not all(map(_identical, first, outputs))

    def _call(self, index: int) -> tuple[Array, ...]:
        run = self.trial.runs[index]
        return tuple(self._session(run.model).run(*run.inputs).values())

    def _guarded(self, index: int, edge: Edge) -> tuple[Array, ...]:
        run = self.trial.runs[index]
        session = self._session(run.model)
        inputs = [guarded_input(x, edge) for x in run.inputs]
        into = {
            info.name: guarded_output(shape, dtype, edge)
            for info, (shape, dtype) in zip(session.outputs, run.outputs, strict=True)
        }
        try:
            return tuple(np.array(x) for x in session.run_into(into, *inputs).values())
        except SessionError:
            outputs = self._call(index)  # its error, or its shapes, say more
            if [(x.shape, x.dtype) for x in outputs] == [*run.outputs]:
                raise
            return outputs

    def _concurrent(self, runs: Sequence[int]) -> Iterator[tuple[int, tuple[Array, ...]]]:
        end = time.monotonic() + _CONCURRENT_SECONDS

        def calls(thread: int) -> dict[int, tuple[Array, ...]]:
            differing: dict[int, tuple[Array, ...]] = {}
            at = thread * len(runs) // _THREADS
            while True:
                for index in (*runs[at:], *runs[:at]):
                    outputs = self._call(index)
                    if index not in differing and self._is_new(index, outputs):
                        differing[index] = outputs
                if time.monotonic() > end:
                    return differing

        with ThreadPoolExecutor(_THREADS) as threads:
            for outputs_by_run in threads.map(calls, range(_THREADS)):
                yield from outputs_by_run.items()

    def _session(self, model: int) -> Session:
        if model not in self._sessions:
            libraries = [self.trial.library]
            self._sessions[model] = Session(
                self.trial.models[model], kernels=False, custom_ops=libraries, configure=_sleeping
            )
        return self._sessions[model]


def _sleeping(options: ort.SessionOptions) -> None:
    # The threads of dozens of sessions would spin after each call.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")


def _identical(one: Array, other: Array) -> bool:
    same_type = (one.shape, one.dtype) == (other.shape, other.dtype)
    # Bytes, because NaN differs from itself, and 0.0 equals -0.0.
    return same_type and one.tobytes() == other.tobytes()


def main(request: Path, results: Path) -> None:
    """Make the calls of a trial, and report each step before the next one starts."""
    trial: Trial = pickle.loads(request.read_bytes())  # noqa: S301 - written by this module
    caller = _Caller(trial)
    # What is in a buffer is lost when the next step crashes.
    with results.open("wb", buffering=0) as file:
        for step in _steps(trial):
            report = caller.report(step)
            file.write(pickle.dumps(report))
            if isinstance(report, str):
                return


Edge = Literal["start", "end"]
"""The edge of an array that lies at a page without access."""

_GUARD = 1 << 22
"""Bytes without access on each side: an index that misses by a row misses them rarely. They take
addresses, not memory."""
_NO_ACCESS, _READ_ONLY = 0, mmap.PROT_READ
_UNWRITTEN = {"start": 0x7F, "end": 0x5A}
"""What outputs hold before a call, by the edge: large numbers, which no result is by chance."""


def guarded_input(array: Array, edge: Edge) -> Array:
    """Return a copy that cannot be written to, with guard pages around it."""
    copy, memory = _guarded(array.shape, array.dtype, edge)
    copy[...] = array
    _protect(memory, _GUARD, len(memory) - 2 * _GUARD, _READ_ONLY)
    return copy


def guarded_output(shape: Sequence[int], dtype: np.dtype[Any], edge: Edge) -> Array:
    """Return an array of large numbers, with guard pages around it."""
    array, _ = _guarded(shape, dtype, edge)
    ctypes.memset(array.ctypes.data, _UNWRITTEN[edge], array.nbytes)
    return array


def _guarded(shape: Sequence[int], dtype: np.dtype[Any], edge: Edge) -> tuple[Array, mmap.mmap]:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    room = max(-(-size // mmap.PAGESIZE), 1) * mmap.PAGESIZE
    memory = mmap.mmap(-1, room + 2 * _GUARD, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _protect(memory, 0, _GUARD, _NO_ACCESS)
    _protect(memory, _GUARD + room, _GUARD, _NO_ACCESS)
    start = _GUARD + (room - size if edge == "end" else 0)
    return np.ndarray(tuple(shape), dtype, buffer=memory, offset=start), memory


def _protect(memory: mmap.mmap, start: int, size: int, access: int) -> None:
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + start
    call = ctypes.CDLL(None, use_errno=True).mprotect
    if call(ctypes.c_void_p(address), ctypes.c_size_t(size), access):
        raise OSError(ctypes.get_errno(), "mprotect failed")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
