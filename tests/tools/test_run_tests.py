"""The counts of the last line are those of the reports."""

from __future__ import annotations

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
