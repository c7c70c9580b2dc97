"""Every exception of the tolerance table has a reason and a user; no test brings its own."""

from __future__ import annotations

import re

from tests.rules.tree import sources, text
from tests.support.tolerances import DEFAULTS, EXCEPTIONS

OWN_TOLERANCE = re.compile(r"assert_allclose|\ballclose\(|assert_array_almost")


def test_every_exception_says_why() -> None:
    for name, row in EXCEPTIONS.items():
        for dtype, tolerance in row.items():
            default = next(iter(DEFAULTS.values())).reason
            assert dtype in DEFAULTS, f"{name}: no such dtype {dtype}"
            assert len(tolerance.reason.split()) >= 5, f"{name}, {dtype}: say why"
            assert tolerance.reason != default, f"{name}, {dtype}: say why"


def test_every_exception_is_used() -> None:
    tests = [
        text(source)
        for source in sources(".py")
        if source.startswith("tests/") and source != "tests/support/tolerances.py"
    ]
    unused = [name for name in EXCEPTIONS if not any(f'"{name}"' in source for source in tests)]
    assert not unused, f"used by no test: {unused}"


def test_no_test_brings_its_own_comparison() -> None:
    own = [
        f"{name}:{number}"
        for name in sources(".py")
        if name.startswith("tests/") and not name.startswith("tests/rules/")
        for number, line in enumerate(text(name).splitlines(), 1)
        if OWN_TOLERANCE.search(line)
    ]
    assert not own, f"use tests.support.tolerances.assert_close: {own}"
