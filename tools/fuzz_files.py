"""Fuzz the code that reads model files: inspect, compare, optimize, save and run mutated models.

    tools/fuzz_files.py [--minutes 10] [--seed 0] [--jobs 1]

Each seed is one file, so ``--seed N --files 1`` reproduces a finding. Files are processed in a
child process: a crash, a hang or too much memory is a finding as well. Exit code 1 if there is a
finding.
"""

from __future__ import annotations

import argparse
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
SECONDS = 60
"""A file that takes longer counts as a hang."""
MEMORY = 8 << 30
BATCH = 2000
"""Files per process."""
SHOWN = 2000
"""Characters printed of a finding."""


def work(start: int, count: int) -> None:
    """Process the files of some seeds and print the findings; runs in the child."""
    sys.path.insert(0, str(REPO))
    from tools.fuzzing.exercise import Exerciser, FoundError

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "m"
        folder.mkdir()
        exerciser = Exerciser(folder, sessions=True)
        for seed in range(start, start + count):
            print(f"at {seed}", flush=True)
            signal.alarm(SECONDS)
            try:
                exerciser.run(seed)
            except FoundError as finding:
                print(f"found {str(finding)[:SHOWN]!r}", flush=True)
            signal.alarm(0)


class Campaign:
    """Findings of all processes."""

    def __init__(self, seed: int, files: int | None, minutes: float) -> None:
        """Start at a seed and end after a number of files or minutes."""
        self.findings: Counter[str] = Counter()
        self.done = 0
        self._next, self._left = seed, files
        self._end = time.monotonic() + 60 * minutes
        self._lock = threading.Lock()

    def run(self) -> None:
        """Start one child after another."""
        while time.monotonic() < self._end:
            with self._lock:
                start, count = self._next, BATCH if self._left is None else min(BATCH, self._left)
                self._next += count
                if self._left is not None:
                    self._left -= count
            if not count:
                return
            while count and time.monotonic() < self._end:
                worked = self._child(start, count)
                start, count = start + worked, count - worked

    def _child(self, start: int, count: int) -> int:
        """Run a child until it is done, dies or the time is over; return its number of files."""
        command = ["nice", sys.executable, __file__, "--child", str(start), str(count)]
        seed, worked = start, 0
        with subprocess.Popen(
            command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as child:
            assert child.stdout is not None
            for line in child.stdout:
                kind, _, rest = line.rstrip("\n").partition(" ")
                if kind == "at":
                    seed, worked = int(rest), worked + 1
                    if time.monotonic() > self._end:
                        child.terminate()
                        break
                elif kind == "found":
                    self._report(seed, rest)
        over = time.monotonic() > self._end
        if child.returncode and not over:
            hung = child.returncode == -signal.SIGALRM
            self._report(seed, f"hangs ({SECONDS} s)" if hung else f"exit code {child.returncode}")
        with self._lock:
            self.done += worked
        return max(worked, 1)

    def _report(self, seed: int, what: str) -> None:
        with self._lock:
            self.findings[what] += 1
            print(f"seed {seed}: {what}", flush=True)


def main() -> int:
    """Run the campaign."""
    if sys.argv[1:2] == ["--child"]:
        work(int(sys.argv[2]), int(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--files", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    campaign = Campaign(options.seed, options.files, options.minutes)
    workers = [threading.Thread(target=campaign.run) for _ in range(options.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    total = campaign.findings.total()
    print(f"{campaign.done} files from seed {options.seed} on: {total} findings")
    return int(bool(total))


if __name__ == "__main__":
    sys.exit(main())
