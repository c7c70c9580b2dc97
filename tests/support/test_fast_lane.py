"""What the fast lane selects."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import fast_lane


@dataclass
class Item:
    """What the selection reads of a test."""

    nodeid: str
    slow: bool = False

    def get_closest_marker(self, name: str) -> Any:
        return name if name == "slow" and self.slow else None


CASES: Any = [Item(f"tests/test_a.py::test_many[{n}]") for n in range(10)]


def names(items: list[Any]) -> list[str]:
    return [item.nodeid for item in items]


def test_a_few_cases_of_each_test_are_selected() -> None:
    items: Any = [*CASES, Item("tests/test_a.py::test_one"), Item("tests/test_b.py::test_many[0]")]
    fast, others = fast_lane.selected(items)
    assert len(fast) == fast_lane.CASES + 2
    assert set(names(items[-2:])) <= set(names(fast))
    assert sorted(names(fast) + names(others)) == sorted(names(items))


def test_the_selection_does_not_depend_on_the_order() -> None:
    forwards, _ = fast_lane.selected(CASES)
    backwards, _ = fast_lane.selected(CASES[::-1])
    assert names(forwards) == names(backwards)[::-1]


def test_slow_tests_are_left_out() -> None:
    items: Any = [Item("tests/test_a.py::test_slow", slow=True), *CASES]
    fast, others = fast_lane.selected(items, {"tests/test_a.py"})
    assert names(others) == ["tests/test_a.py::test_slow"]
    assert fast == CASES


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("coreai_onnx/lower/aten/nn/pooling.py", "tests/lower/aten/nn/test_pooling.py"),
        ("coreai_onnx/errors.py", "tests/test_errors.py"),
        ("tests/passes/test_order.py", "tests/passes/test_order.py"),
        ("tools/quickstart.py", "tests/tools/test_quickstart.py"),
        ("custom_ops/kernels/rope-inl.h", "tests/custom_ops/test_rope.py"),
        ("custom_ops/ops/rope.cc", "tests/custom_ops/test_rope.py"),
    ],
)
def test_the_test_file_of_a_changed_file(changed: str, tests: str, repo: Path) -> None:
    assert fast_lane.test_files([changed]) == {tests}
    assert (repo / tests).is_file()


def test_documents_have_no_test_file() -> None:
    assert fast_lane.test_files(["README.md", "docs/architecture.md"]) == set()


def test_changes_are_those_since_main(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def commit(name: str) -> None:
        (tmp_path / name).write_text("")
        git("add", name)
        git("commit", "-m", name)

    git("init", "--initial-branch", "main")
    commit("on_main")
    git("switch", "-c", "branch")
    commit("committed")
    (tmp_path / "on_main").write_text("changed")
    (tmp_path / "new").write_text("")
    assert sorted(fast_lane.changed_files(tmp_path)) == ["committed", "new", "on_main"]


def test_a_folder_without_git_has_no_changes(tmp_path: Path) -> None:
    assert fast_lane.changed_files(tmp_path) == []
