"""What docs/torch_versions.md says is reached into is there, in the torch that runs this."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from tests.rules.tree import text
from tools.run_with_torch import SUITES, known

PAGE = text("docs/torch_versions.md")
NAMES = re.findall(r"^\| `((?:torch|transformers)\.[\w.]+)` \|", PAGE, re.MULTILINE)


def resolve(name: str) -> Any:
    """Return what a dotted name is: a module as far as it goes, then attributes."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ImportError(name)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name: str) -> None:
    assert callable(resolve(name))


def test_the_page_lists_names_and_runs() -> None:
    assert len(NAMES) > 8
    rows = re.findall(
        r"^\| (2\.\d+\.\d+) \| ([\w ]+) \| \d+ \| \d+ \| (\d+) \|$", PAGE, re.MULTILINE
    )
    assert {version for version, *_ in rows} == {"2.12.1", "2.15.0"}
    assert all(suite in SUITES for _, suite, _ in rows)
    assert {count for *_, count in rows} == {"0"}
    for version, *_ in rows:
        for test in known(version):
            assert test.rpartition(".")[2].partition("[")[0] in PAGE
