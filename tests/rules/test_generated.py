"""Files that a tool writes are as the tool writes them today."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules.tree import REPO, files, is_generated, text

GENERATORS = sorted(path.name for path in (REPO / "tools").glob("generate_*.py"))


@pytest.mark.parametrize("generator", GENERATORS)
def test_generated_file_is_fresh(generator: str) -> None:
    result = subprocess.run(
        [sys.executable, str(Path("tools") / generator), "--check"],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_generated_file_names_its_generator() -> None:
    for name in files():
        source = text(name)
        if name.endswith((".py", ".h", ".cc", ".md")) and is_generated(source):
            head = "\n".join(source.splitlines()[:5])
            assert any(g in head for g in GENERATORS), f"{name} does not say which tool wrote it"
