"""A sweep's findings outlive the sweep, and its last line may be cut off."""

from __future__ import annotations

from pathlib import Path

from tools.operators.journal import Journal

PASS = [{"status": "pass", "detail": "", "resized": {}}]
WRONG = [{"status": "mismatch", "detail": "1 of 2", "resized": {}}]


def test_what_was_added_is_read_and_the_later_counts(tmp_path: Path) -> None:
    path = tmp_path / "build" / "journal.jsonl"
    journal = Journal(path)
    journal.add(("a", "float32"), WRONG)
    journal.add(("b", "float32"), PASS)
    journal.add(("a", "float32"), PASS)
    assert Journal(path).found == {("a", "float32"): PASS, ("b", "float32"): PASS}


def test_a_line_that_is_cut_off_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.add(("a",), PASS)
    journal.add(("b",), PASS)
    path.write_text(path.read_text(encoding="utf-8")[:-9], encoding="utf-8")
    assert Journal(path).found == {("a",): PASS}
