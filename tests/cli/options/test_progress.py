"""Stages on stderr."""

from __future__ import annotations

import re
import sys

import pytest

from coreai_onnx.cli.options.progress import stages_shown
from coreai_onnx.messages import begin_stage


def test_stages_are_lines_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with stages_shown():
        begin_stage("export")
        begin_stage("lower")
    begin_stage("save")
    told = capsys.readouterr()
    assert re.fullmatch(r" +\d+\.\d s  export\n +\d+\.\d s  lower\n", told.err)
    assert told.out == ""


def test_without_a_terminal_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with stages_shown():
        begin_stage("export")
    assert capsys.readouterr() == ("", "")
