"""A name says what a file holds, and no file names the host of a package registry."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from tests.rules.tree import files, text

VAGUE = re.compile(r"^(test_)?_?(utils?|helpers?|misc|commons?)(_test)?(-inl)?$")
# Escaped dots, so that this file keeps its own rule.
REGISTRY_HOST = re.compile(
    r"pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)"
    r"|\b(?:deb|ftp|security|snapshot|packages)\.debian\.org",
    re.IGNORECASE,
)


def test_no_vague_names() -> None:
    vague = [
        n for n in files() if any(VAGUE.match(p.split(".")[0]) for p in PurePosixPath(n).parts)
    ]
    assert not vague, f"name these by what they hold: {vague}"


def test_no_registry_hosts() -> None:
    named = [
        f"{name}:{number}"
        for name in files()
        for number, line in enumerate(text(name).splitlines(), 1)
        if REGISTRY_HOST.search(line)
    ]
    assert not named, f"these lines name a registry's host: {named}"


def test_the_patterns_match_what_they_should() -> None:
    assert all(VAGUE.match(n) for n in ("utils", "test_helpers", "misc", "common", "_util"))
    assert not any(VAGUE.match(n) for n in ("common_subexpressions", "commands", "miscount"))
    assert REGISTRY_HOST.search("https://pypi." + "org/simple")
    assert not REGISTRY_HOST.search("the package copyright-debian.organic")
