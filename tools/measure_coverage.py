"""Measure how many lines of the package the tests run, and write the table of the documentation.

Arguments are passed on to pytest: ``tools/measure_coverage.py`` measures the whole suite,
``tools/measure_coverage.py --fast`` the fast lane. Code that tests run in processes of their own
does not count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

REPO = Path(__file__).resolve().parent.parent
REPORT = REPO / "build" / "coverage.json"
TABLE = REPO / "docs" / "internals" / "coverage.md"
TEXT = """# Coverage of the tests

Lines of `coreai_onnx` that the Python tests run, counted by coverage.py. Lines that only run in
processes of their own, as most of the command line's, do not count. The C++ code is not measured.

Measured with `{command}`:

{table}
"""


def measure(arguments: list[str]) -> int:
    """Run pytest with coverage, write the report, and return pytest's exit status."""
    REPORT.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", "-q"]
    command += ["-p", "pytest_cov", "--cov=coreai_onnx", f"--cov-report=json:{REPORT}"]
    environment = {**os.environ, "COVERAGE_FILE": str(REPORT.with_name(".coverage"))}
    done = subprocess.run([*command, *arguments], cwd=REPO, env=environment, check=False)
    return done.returncode


def folder_of(name: str) -> str:
    """Return the row of a source file: its folder, two levels deep."""
    parts = PurePosixPath(name).parts[:-1]
    return "/".join(parts[:3])


def table(report: Mapping[str, Any]) -> str:
    """Return a Markdown table of a report of coverage.py: per folder, then the total."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, entry in report["files"].items():
        for row in (folder_of(name), "total"):
            counts[row][0] += entry["summary"]["covered_lines"]
            counts[row][1] += entry["summary"]["num_statements"]
    lines = ["| folder | statements | covered |", "|---|---:|---:|"]
    for row in sorted(counts, key=lambda name: (name == "total", name)):
        covered, statements = counts[row]
        share = 100 * covered / statements if statements else 100
        lines.append(f"| {row} | {statements:,} | {share:.1f} % |")
    return "\n".join(lines)


def main() -> int:
    """Measure, print and write the table."""
    status = measure(sys.argv[1:])
    if not REPORT.is_file():
        return status
    found = table(json.loads(REPORT.read_text(encoding="utf-8")))
    command = " ".join(["tools/measure_coverage.py", *sys.argv[1:]])
    TABLE.write_text(TEXT.format(command=command, table=found), encoding="utf-8")
    print(found)
    return status


if __name__ == "__main__":
    sys.exit(main())
