"""The package has one table of onnxruntime's releases, ``targets/releases.py``."""

from __future__ import annotations

import ast
import re

import pytest

from tests.rules.tree import sources, text

TABLE = "coreai_onnx/targets/releases.py"
VERSION = re.compile(r"1\.(1[89]|[2-9]\d)(\.\d+)?")
CLAIM = re.compile(r"onnxruntime 1\.\d+ or (later|newer)")


def releases(source: str) -> list[int]:
    """Return the lines with a release: ``(1, 25)``, ``"1.25"``, or "onnxruntime 1.25 or later"."""
    tree = ast.parse(source)
    described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple):
            numbers = [item.value for item in node.elts if isinstance(item, ast.Constant)]
            found = len(node.elts) == len(numbers) == 2 and numbers[0] == 1 and _minor(numbers[1])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            claims = id(node) not in described and CLAIM.search(node.value)
            found = bool(VERSION.fullmatch(node.value) or claims)
        else:
            continue
        lines += [node.lineno] * found
    return lines


def _minor(value: object) -> bool:
    return isinstance(value, int) and 18 <= value < 100


@pytest.mark.parametrize(
    "line",
    ["X = {'MoE': (1, 25)}", "X = '1.24'", "X = f'{y}: use onnxruntime 1.24 or later'"],
)
def test_a_release_is_seen(line: str) -> None:
    assert releases(
        f'"""Since onnxruntime 1.25 or later."""\nfor k in range(1, 30):\n  {line}'
    ) == [3]


def test_no_other_file_has_releases() -> None:
    found = {
        f"{name}:{line}"
        for name in sources(".py")
        if name.startswith("coreai_onnx/") and name != TABLE
        for line in releases(text(name))
    }
    assert not found
    assert releases(text(TABLE))
