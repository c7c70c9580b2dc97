"""A class has a name of its own: a reader who finds the name finds the class."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable

from tests.rules.tree import sources, text


def repeated_classes(files: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the classes that several places of the given files define, with their places."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, source in files:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{name}:{node.lineno}")
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_class_name_occurs_twice_in_the_package() -> None:
    package = [name for name in sources(".py") if name.startswith("coreai_onnx/")]
    assert repeated_classes((name, text(name)) for name in package) == {}


def test_repetitions_are_found_in_functions_too() -> None:
    files = [("a.py", "class A: ...\ndef f():\n    class B: ..."), ("b.py", "class B: ...")]
    assert repeated_classes(files) == {"B": ["a.py:3", "b.py:1"]}
