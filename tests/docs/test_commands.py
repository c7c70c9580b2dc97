"""The commands that the documentation shows for its numbers exist, with the options it gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.rules.tree import REPO, files, text

COMMAND = re.compile(r"python -m (tools\.bench\.\w+)((?:\\\n|[^\n#`])*)")
"""A module and what follows it, on continued lines too."""
OPTION = re.compile(r"(?<!\S)--[a-z][a-z-]*")
DOCUMENTS = [n for n in files() if n.endswith(".md") and n.startswith(("docs/", "custom_ops/"))]


def commands(document: str) -> list[tuple[str, set[str]]]:
    """Return modules and their options."""
    found = COMMAND.finditer(document)
    return [(match[1], set(OPTION.findall(match[2]))) for match in found]


def missing(document: str) -> list[str]:
    """Return what the commands of a document name and their modules do not have."""
    wrong = []
    for module, options in commands(document):
        source = REPO / Path(*module.split(".")).with_suffix(".py")
        if not source.is_file():
            wrong.append(module)
            continue
        known = source.read_text(encoding="utf-8")
        wrong += [f"{module} {o}" for o in sorted(options) if f'"{o}"' not in known]
    return wrong


@pytest.mark.parametrize("name", [n for n in [*DOCUMENTS, "README.md"] if commands(text(n))])
def test_commands_of_a_document_exist(name: str) -> None:
    assert not missing(text(name))


def test_what_is_missing_is_named() -> None:
    document = "```console\n$ python -m tools.bench.kernels --gone \\\n    --threads 2 # --no\n```"
    assert missing(document) == ["tools.bench.kernels --gone"]
    assert missing("`python -m tools.bench.gone`") == ["tools.bench.gone"]
