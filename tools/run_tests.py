"""Run the whole suite: the C++ tests of build/ops, then the Python tests, then one line of counts.

Arguments are passed on to pytest: ``make test`` runs everything, ``tools/run_tests.py tests/lower``
runs one folder of the Python side.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

REPO = Path(__file__).resolve().parent.parent
BUILD = REPO / "build" / "ops"
WORKERS = "2"


@dataclass
class Counts:
    """How many tests passed, failed and were skipped."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        """Add two suites."""
        return Counts(
            self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped
        )

    def __str__(self) -> str:
        """Return the last line of a test runner's output."""
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def read_junit(path: Path) -> Counts:
    """Count the cases of a JUnit report; errors are failures."""
    counts = Counts()
    if not path.is_file():
        return counts
    for case in ET.parse(path).iter("testcase"):  # noqa: S314 - written by us just now
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            counts.failed += 1
        elif "skipped" in kinds or case.get("status") == "notrun":
            counts.skipped += 1
        else:
            counts.passed += 1
    return counts


def run_cpp(report: Path) -> tuple[int, Counts]:
    """Run ctest if the C++ tests are built, otherwise print a message."""
    if not (BUILD / "CTestTestfile.cmake").is_file():
        print("the C++ tests are not built (see above)", flush=True)
        return 0, Counts()
    command = ["ctest", "--test-dir", str(BUILD), "--parallel", WORKERS, "--output-on-failure"]
    command += ["--output-junit", str(report), "--no-tests=error"]
    log = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (log.stdout + log.stderr).splitlines()
    print("\n".join(lines if log.returncode else lines[-4:]), flush=True)
    return log.returncode, read_junit(report)


def run_python(report: Path, arguments: list[str]) -> tuple[int, Counts]:
    """Run pytest on two workers."""
    command = [sys.executable, "-m", "pytest", "-n", WORKERS, "--dist", "worksteal", "-q"]
    command += [f"--junit-xml={report}", "--durations=10", "--durations-min=5", *arguments]
    environment = dict(os.environ)
    if list(BUILD.glob("*coreai_onnx_ops*")):
        environment["COREAI_REQUIRE_KERNELS"] = "1"
    status = subprocess.run(command, cwd=REPO, env=environment, check=False).returncode
    return status, read_junit(report)


def main() -> int:
    """Run both suites and return 1 if either failed."""
    with tempfile.TemporaryDirectory() as folder:
        cpp_status, cpp = run_cpp(Path(folder, "cpp.xml"))
        py_status, py = run_python(Path(folder, "python.xml"), sys.argv[1:])
    print(f"\nC++     {cpp}\nPython  {py}\nall: {cpp + py}", flush=True)
    return int(bool(cpp_status or py_status))


if __name__ == "__main__":
    sys.exit(main())
