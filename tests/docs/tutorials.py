"""What the blocks of a tutorial print, compared with the output that the page shows."""

from __future__ import annotations

import re

import pytest

FOLDER = "docs/tutorials/"
OUTPUT = re.compile(r"\s*```text\n(.*?)```", re.DOTALL)
"""The output of the block before it."""
TOKEN = re.compile(r"\.\.\.|\s+|-?\d+\.\d+(?:e[-+]\d+)?|.", re.DOTALL)


def assert_shown(shown: str, printed: str) -> None:
    """Compare an output with the one on the page.

    ``...`` stands for anything. Numbers with a fraction depend on the CPU a little; those with an
    exponent are mostly rounding errors, of which only the place is compared.
    """
    pattern, numbers = "", []
    for token in TOKEN.findall(shown.strip()):
        if token == "...":
            pattern += ".*?"
        elif token.isspace():
            pattern += r"\s+"
        elif len(token) == 1:
            pattern += re.escape(token)
        elif "e" in token:
            pattern += r"-?\d\.\d+e[-+]\d+"
        else:
            pattern += r"(-?\d+\.\d+)"
            numbers.append(float(token))
    pattern = pattern.replace(r"\s+.*?\s+", r"\s+.*?")
    found = re.fullmatch(pattern, printed.strip(), re.DOTALL)
    assert found, f"the page shows\n{shown}\nbut the code prints\n{printed}"
    assert [float(n) for n in found.groups()] == pytest.approx(numbers, rel=0.1), printed
