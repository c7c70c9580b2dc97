"""The package stays small enough to hold in mind: packages, entries of a folder, files."""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePosixPath

from tests.rules.tree import files

ROOT = PurePosixPath("coreai_onnx")
MAX_PACKAGES = 13
MAX_MODULES_BESIDE = 8
MAX_ENTRIES = 20
MAX_FILES = 701
CEREMONY = {"__init__.py", "__main__.py", "py.typed"}


def entries() -> dict[PurePosixPath, set[str]]:
    """Return the files and folders in each folder of the package, without `CEREMONY`."""
    inside: dict[PurePosixPath, set[str]] = defaultdict(set)
    for name in files():
        path = PurePosixPath(name)
        while path.parts[0] == ROOT.name and len(path.parts) > 1:
            if path.name not in CEREMONY:
                inside[path.parent].add(path.name)
            path = path.parent
    return inside


def test_there_are_few_packages() -> None:
    packages = {name for name in entries()[ROOT] if "." not in name}
    assert len(packages) <= MAX_PACKAGES, sorted(packages)
    assert len(entries()[ROOT] - packages) <= MAX_MODULES_BESIDE


def test_folders_have_few_entries() -> None:
    counts = {str(folder): len(names) for folder, names in entries().items() if folder != ROOT}
    crowded = {folder: count for folder, count in counts.items() if count > MAX_ENTRIES}
    assert not crowded


def test_there_are_few_files() -> None:
    sources = [n for n in files() if n.startswith("coreai_onnx/") and n.endswith(".py")]
    assert len(sources) <= MAX_FILES
