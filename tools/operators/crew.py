"""Workers that measure many jobs; one that dies is replaced, and its death is a finding."""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tqdm import tqdm

from tools.operators.measuring import CONVERSION_FAILED, CRASH, RUN_FAILED, SECONDS

REPO = Path(__file__).resolve().parents[2]
PATIENCE = 3 * SECONDS + 30
"""Seconds without a line after which a worker counts as stuck: a step is limited to SECONDS."""
BATCH = 150
"""Jobs after which a worker makes room for a fresh one."""
WORKER = (sys.executable, "-m", "tools.operators.worker")


@dataclass(frozen=True)
class Job:
    """An entry in one dtype.

    Attributes:
        entry: Name of the OpInfo.
        dtype: ``float32``.
        samples: How many of its samples at most.
        dynamic: Whether every dim is dynamic.
    """

    entry: str
    dtype: str
    samples: int = 3
    dynamic: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """What the job is shown and kept as."""
        return self.entry, self.dtype


class _Keyed(Protocol):
    @property
    def key(self) -> tuple[str, ...]: ...


Found = list[dict[str, Any]]
"""Per call: ``status``, ``detail`` and ``resized``."""
_J = TypeVar("_J")
_K = TypeVar("_K", bound=_Keyed)


def measure_with_bar(
    jobs: Sequence[_K], tell: Callable[[_K, Found], None], *, unit: str = "model", **options: Any
) -> None:
    """Do what :func:`measure_all` does, with a progress bar that names the last finished job.

    Args:
        jobs: The jobs, each with a key of words.
        tell: Called with each job and what was found, one call at a time.
        unit: What the bar calls a job.
        options: As for :func:`measure_all`.
    """
    if not jobs:
        return
    with tqdm(total=len(jobs), unit=unit, smoothing=0.05) as bar:

        def finished(job: _K, found: Found) -> None:
            tell(job, found)
            bar.set_postfix_str(" ".join(job.key)[:40])
            bar.update()

        measure_all(jobs, finished, **options)


def measure_all(
    jobs: Iterable[_J],
    tell: Callable[[_J, Found], None],
    *,
    workers: int = 2,
    command: Sequence[str] = WORKER,
    patience: float = PATIENCE,
    batch: int = BATCH,
) -> None:
    """Measure jobs in processes and hand over the findings of each as it is done.

    Args:
        jobs: The jobs: dataclasses, whose fields the worker is given.
        tell: Called with each job and what was found, one call at a time.
        workers: How many processes.
        command: What starts one.
        patience: Seconds without a line after which a worker counts as stuck.
        batch: Jobs after which a worker makes room for a fresh one.
    """
    waiting: queue.SimpleQueue[_J] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    lock = threading.Lock()
    errors: list[BaseException] = []

    def watched() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)

    def work() -> None:
        worker = _Worker(command, patience)
        while True:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                worker.close()
                return
            if worker.served >= batch:
                worker.close()
                worker = _Worker(command, patience)
            found, worker = _measured(worker, job)
            with lock:
                tell(job, found)

    threads = [threading.Thread(target=watched, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _measured(worker: _Worker, job: Any) -> tuple[Found, _Worker]:
    """Measure a job; after a death the next worker goes on with the next call."""
    calls: dict[int, dict[str, Any]] = {}
    first = 0
    while True:
        worker.ask({**job.__dict__, "first": first})
        step, current = "", first
        while (line := worker.line()) is not None and "done" not in line:
            current = line.pop("call")
            if "step" in line:
                step = line["step"]
            else:
                calls[current], step = line, ""
        if line is not None:
            return [calls[i] for i in sorted(calls)], worker
        end = worker.close()
        status = CRASH if step in (CONVERSION_FAILED, RUN_FAILED) else step
        if step:
            calls[current] = {"status": status, "detail": f"{end}, {step}", "resized": {}}
        worker, first = _Worker(worker.command, worker.patience), current + 1


class _Worker:
    """A process of tools.operators.worker."""

    def __init__(self, command: Sequence[str], patience: float) -> None:
        self.command = command
        self.patience = patience
        self.served = -1
        self._rest = b""
        paths = (str(REPO), os.environ.get("PYTHONPATH", ""))
        self._process = subprocess.Popen(
            command,
            cwd=REPO,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        if self.line() is None:
            raise RuntimeError(f"{' '.join(command)} does not start")

    def ask(self, job: dict[str, Any]) -> None:
        """Give the process a job."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")

    def line(self) -> dict[str, Any] | None:
        """Return the next line, or None from a process that is dead or stuck."""
        assert self._process.stdout is not None
        end = time.monotonic() + self.patience
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            ready, _, _ = select.select([self._process.stdout], [], [], max(left, 0))
            more = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            if not more:
                return None
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(text)
        self.served += "done" in found
        return found

    def close(self) -> str:
        """End the process and say how it ended."""
        time.sleep(0.05)  # one that just died has its own exit status
        alive = self._process.poll() is None
        if alive:
            self._process.kill()
        code = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return f"no answer in {self.patience:.0f} s" if alive else f"exit {code}"
