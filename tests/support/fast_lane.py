"""The fast lane: the tests that run for every change, in a quarter of the suite's time.

``make test-fast``, or ``pytest --fast`` for a part of it, selects by three rules:

1. Tests marked ``slow`` are left out.
2. Of each test function, ``CASES`` parametrized cases run. A hash of the name chooses them: they
   are spread over the parameters, and they are the same in every run and on every machine.
3. Where a change touches a source file or its test file, all cases of the test file run. A change
   is the difference of the working tree to the branch ``main``; a source file belongs to the test
   file that mirrors it.

``make test`` and ``.ci/run`` run everything.
"""

from __future__ import annotations

import subprocess
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path, PurePosixPath

import pytest

CASES = 2
BASES = ("main", "origin/main", "HEAD")


def selected(
    items: Sequence[pytest.Item], whole_files: Collection[str] = ()
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Divide tests into those of the fast lane and the others, both in their order.

    Args:
        items: The collected tests.
        whole_files: Test files of which every case runs, relative to the root.
    """
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") is None:
            cases[item.nodeid.partition("[")[0]].append(item.nodeid)
    chosen = {
        name
        for test, names in cases.items()
        for name in (names if test.partition("::")[0] in whole_files else _spread(names))
    }
    fast = [item for item in items if item.nodeid in chosen]
    return fast, [item for item in items if item.nodeid not in chosen]


def test_files(changed: Iterable[str]) -> set[str]:
    """Return the test files of changed files; both are relative to the root."""
    found = set()
    for path in map(PurePosixPath, changed):
        folder, *inner = path.parts[:-1] or ("",)
        if folder == "tests":
            found.add(str(path))
        elif folder in {"coreai_onnx", "tools"}:
            middle = inner if folder == "coreai_onnx" else [folder]
            found.add(str(PurePosixPath("tests", *middle, f"test_{path.stem}.py")))
        elif folder == "custom_ops":
            stem = path.stem.removesuffix("-inl")
            found.add(f"tests/custom_ops/test_{stem}.py")
    return found


def changed_files(repo: Path) -> list[str]:
    """Return the files that differ from the branch ``main``, new files too."""
    new = _git(repo, "ls-files", "--others", "--exclude-standard") or []
    differences = (_git(repo, "diff", "--name-only", "--merge-base", base) for base in BASES)
    return new + next((names for names in differences if names is not None), [])


def _git(repo: Path, *arguments: str) -> list[str] | None:
    """Return the lines that git prints; None if it fails."""
    result = subprocess.run(
        ["git", *arguments], cwd=repo, capture_output=True, text=True, check=False
    )
    return None if result.returncode else result.stdout.splitlines()


def _spread(names: list[str]) -> list[str]:
    return sorted(names, key=lambda name: zlib.crc32(name.encode()))[:CASES]
