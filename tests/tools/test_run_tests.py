"""The counts of the last line are those of the reports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tools.run_tests import Counts, read_junit

REPORT = """<testsuites><testsuite>
  <testcase name="a"/>
  <testcase name="b"><failure/></testcase>
  <testcase name="c"><error/></testcase>
  <testcase name="d"><skipped/></testcase>
  <testcase name="e" status="notrun"/>
  <testcase name="f" status="run"><system-out/></testcase>
</testsuite></testsuites>"""


def test_counts_of_a_report(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    assert read_junit(path) == Counts(passed=2, failed=2, skipped=2)


def test_no_report_counts_nothing(tmp_path: Path) -> None:
    assert read_junit(tmp_path / "none.xml") == Counts()


def test_the_closing_line() -> None:
    assert str(Counts(1, 2, 3) + Counts(10, 0, 0)) == "11 passed, 2 failed, 3 skipped"


def test_other_plugins_of_the_environment_are_not_loaded(repo: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stops_the_suite-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: stops-the-suite\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[pytest11]\nstops = stops_the_suite\n")
    (tmp_path / "stops_the_suite.py").write_text("raise RuntimeError('loaded')\n")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/test_messages.py"],
        cwd=repo,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
