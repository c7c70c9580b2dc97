"""The lane for other versions of torch: what is installed, and what counts as a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rules.tree import REPO
from tools.run_with_torch import (
    DEFECTS,
    LACKING,
    OF_TRANSFORMERS,
    SUITES,
    Result,
    constraints,
    known,
    line,
    read_report,
    requirements,
    run,
    unexpected,
)

REPORT = """<testsuites><testsuite>
  <testcase classname="tests.test_x" name="a"/>
  <testcase classname="tests.test_x" name="b[1]"><failure/></testcase>
  <testcase classname="tests.test_x" name="c"><error/></testcase>
  <testcase classname="tests.test_x" name="d"><skipped/></testcase>
  <testcase classname="tests.test_x" name="e"><failure>
    pip install "transformers>=5"</failure></testcase>
</testsuite></testsuites>"""


def test_the_environment_has_the_usual_versions_of_all_but_torch() -> None:
    with constraints() as path:
        fixed = path.read_text().splitlines()
    assert any(name.startswith("onnxruntime==") for name in fixed)
    assert not any(name.startswith("torch==") for name in fixed)
    assert any(name.startswith("transformers>=") for name in requirements())
    assert not any(name.split(">")[0] == "torch" for name in requirements())


def test_a_report_names_what_failed(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    assert read_report(path) == Result(
        1, ["tests.test_x.b[1]", "tests.test_x.c"], 1, ["tests.test_x.e"]
    )


def test_no_report_is_a_failure(tmp_path: Path) -> None:
    assert read_report(tmp_path / "none.xml").failed


def test_known_defects_are_counted_apart() -> None:
    defects = {"tests.test_x.b[1]": "why", "operators.sort": "why"}
    result = Result(7, ["tests.test_x.b[1]", "tests.test_x.c", "operators.sort: detail"])
    assert unexpected(result, defects) == ["tests.test_x.c"]
    assert line("2.15.0", "export", result, defects) == "| 2.15.0 | export | 7 | 2 | 1 |"
    result.lacking.append("tests.test_x.e")
    row = "| transformers 5.0.0 | tasks | 7 | 1 | 2 | 1 |"
    assert line("transformers 5.0.0", "tasks", result, defects) == row


@pytest.mark.parametrize(
    ("message", "lacks"),
    [
        ("AttributeError: module transformers has no attribute Gemma4Config", True),
        ("No module named 'transformers.models.clip.image_processing_pil_clip'", True),
        ("cannot import name 'DummyLayer' from 'transformers.cache_utils'", True),
        ("AssertionError: float32", False),
    ],
)
def test_a_failure_through_something_that_transformers_lacks(message: str, lacks: bool) -> None:
    assert bool(LACKING.search(message)) is lacks


@pytest.mark.parametrize(
    "version", ["2.12.1", "2.15.0", "transformers 5.0.0", "transformers 5.10.0"]
)
def test_known_defects_are_tests_that_are_there(version: str) -> None:
    assert known(version)
    for name, reason in known(version).items():
        assert reason
        if name.startswith("tests."):
            module, _, test = name.partition("[")[0].rpartition(".")
            assert f"def {test}(" in (REPO / f"{module.replace('.', '/')}.py").read_text()
    assert not known("2.13.0")
    assert DEFECTS.is_file()


def test_the_suites_are_tests_that_are_there() -> None:
    tests = [path for suite in (SUITES | OF_TRANSFORMERS).values() for path in suite]
    assert tests
    assert all((REPO / path).exists() for path in tests)


def test_a_python_that_runs_no_tests_fails(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    assert run(python, ["tests/export"]).failed == ["no test was run"]
