"""Generation with a Llama of 100 million parameters: this project and others, in one run.

    python -m tools.bench.generation --environment genai=/genai/bin/python mobius=/tmp/mobius \\
        optimum=/optimum/bin/python llama.cpp=/llama/bin/python --threads 1 2

12 layers, hidden size 768, 12 heads, 4 of keys, intermediate size 2048, 16,000 tokens, float32.
Each implementation is a process of its own that keeps its model open (``generation_worker.py``),
and each round asks all of them for one step in turn: a prefill of 128 tokens (or ``PROMPT`` of the
environment), or one token after 512 cached ones. Times are process CPU time for one thread and wall
time for more. The files are written once into ``--folder``. What is not installed is reported as
missing. Logits are compared with those of the first implementation.

The environments: ``genai`` is an interpreter with onnxruntime-genai, torch and transformers,
``optimum`` one with optimum-onnx, ``llama.cpp`` one with llama-cpp-python and gguf, and ``mobius``
a folder with mobius-onnx (see ``mobius.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coreai_onnx.messages import render
from tools.bench.generation_models import Peer, peers, prepare, write_source
from tools.bench.generation_worker import CACHED, PROMPT, SOURCE

WORKER = Path(__file__).with_name("generation_worker.py")
STEPS = ("prefill", "decode")


@dataclass
class Running:
    """The process of an implementation.

    Attributes:
        peer: The implementation.
        process: The process.
        times: The times of each step: seconds of CPU time and of wall time.
        logits: Some logits of each step.
    """

    peer: Peer
    process: subprocess.Popen[str]
    times: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    logits: dict[str, list[float]] = field(default_factory=dict)

    def ask(self, what: str) -> dict[str, Any]:
        """Send a line and return the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Return the next answer; libraries may print lines of their own before it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError(f"it ended with status {self.process.wait()}")

    def time(self, step: str) -> None:
        """Time one step."""
        answer = self.ask(step)
        self.times.setdefault(step, []).append((answer["cpu"], answer["wall"]))
        self.logits[step] = answer["logits"]


def main() -> int:
    """Write the files, measure, and print one table per number of threads."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="for the files; kept if it is given")
    parser.add_argument("--environment", nargs="*", default=[], metavar="NAME=PATH")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--prepare", action="store_true", help="only write the files")
    options = parser.parse_args()
    environments = dict(one.split("=", 1) for one in options.environment)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        folder.mkdir(exist_ok=True, parents=True)
        found = peers(environments)
        if options.only:
            found = [peer for peer in found if any(part in peer.name for part in options.only)]
        written(found, folder, environments)
        for threads in [] if options.prepare else options.threads:
            measure(found, folder, environments, threads, options.rounds)
    return 0


def written(found: list[Peer], folder: Path, environments: dict[str, str]) -> None:
    """Write the files of all implementations."""
    if not (folder / SOURCE).exists():
        write_source(folder / SOURCE)
    for peer in found:
        try:
            if not peer.wrong:
                prepare(peer, folder, environments)
        except Exception as error:  # noqa: BLE001 - whatever an exporter raises is a result
            peer.wrong = f"does not export: {str(error)[:80]}"


def measure(
    found: list[Peer], folder: Path, environments: dict[str, str], threads: int, rounds: int
) -> None:
    """Start the implementations, time their steps in turn, and print the table."""
    running = []
    for peer in found:
        if peer.wrong:
            continue
        one = started(peer, folder, environments, threads)
        try:
            peer.facts["open_s"] = one.answer()["seconds"]
            for step in STEPS:
                one.time(step)
            running.append(one)
        except RuntimeError as error:
            peer.wrong = f"does not run: {error}"
    for index in range(rounds):
        for one in running:
            one.time("decode")
            if index % 3 == 0:
                one.time("prefill")
    for one in running:
        one.peer.facts["peak_mib"] = one.ask("end")["peak_mib"]
        one.process.wait()
    report(found, running, threads)


def started(peer: Peer, folder: Path, environments: dict[str, str], threads: int) -> Running:
    """Start the process of an implementation."""
    given = {**peer.worker, "path": str(folder / peer.worker["path"]), "threads": threads}
    interpreter = environments.get(peer.environment, sys.executable)
    process = subprocess.Popen(
        [interpreter, str(WORKER), json.dumps(given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    return Running(peer, process)


def report(found: list[Peer], running: list[Running], threads: int) -> None:
    """Print the table; ratios are to the implementation with the shortest time."""
    clock = 0 if threads == 1 else 1
    what = "process CPU time" if threads == 1 else "wall time"
    print(f"\n{threads} thread(s), {what}, ms: minimum / median, ratio to the best minimum")
    best = {step: min(fastest(one, step, clock) for one in running) for step in STEPS}
    titles = [
        "", f"prefill {PROMPT}", "×", f"decode at {CACHED}", "×", "tokens/s", "export s", "open s",
        "MiB on disk", "peak MiB", "difference",
    ]  # fmt: skip
    rows = []
    for peer in found:
        one = next((one for one in running if one.peer is peer), None)
        if one is None:
            rows.append([peer.name, peer.wrong, *[""] * (len(titles) - 2)])
            continue
        cells = [peer.name]
        for step in STEPS:
            times = [time[clock] * 1e3 for time in one.times[step]]
            cells.append(f"{min(times):.1f} / {statistics.median(times):.1f}")
            cells.append(f"{min(times) / 1e3 / best[step]:.2f}")
        cells.append(f"{1 / fastest(one, 'decode', clock):.1f}")
        facts = [peer.facts.get(name) for name in ("export_s", "open_s", "size_mib", "peak_mib")]
        cells += ["–" if fact is None else f"{fact:.1f}" for fact in facts]
        rows.append([*cells, f"{difference(one, running[0]):.0e}"])
    print(render(titles, rows), flush=True)


def fastest(one: Running, step: str, clock: int) -> float:
    """Return the shortest time of a step."""
    return min(time[clock] for time in one.times[step])


def difference(one: Running, first: Running) -> float:
    """Return the largest difference of the logits from those of the first implementation."""
    pairs = [(one.logits[step], first.logits[step]) for step in STEPS]
    return max(float(np.max(np.abs(np.subtract(a, b)))) for a, b in pairs)


if __name__ == "__main__":
    sys.exit(main())
