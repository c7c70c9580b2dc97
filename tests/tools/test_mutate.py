"""The places that the tool breaks."""

from __future__ import annotations

import random

from tools.mutate import AREAS, choose, cpp_mutants, python_mutants

PYTHON = '''
@lowers("aten.a.default")
def a(op, x, n: int = 3):
    """Text with 1 < 2."""
    if n < 4:
        raise ValueError("é", n - 1)
    return op.Add(x, op.Cumulate(x, axis=1)), "é", n + 2
'''


def broken(source: str, mutants) -> set[tuple[str, str]]:
    """Return the kind and the changed line of each mutant."""
    found = set()
    for m in mutants:
        assert source[m.start :].startswith(m.old)
        text = source[: m.start] + m.new + source[m.start + len(m.old) :]
        found.add((m.kind, text.splitlines()[m.line - 1].strip()))
    return found


def test_places_of_python() -> None:
    returned = 'return op.Add(x, op.Cumulate(x, axis=1)), "é", n + 2'
    assert broken(PYTHON, python_mutants("coreai_onnx/lower/aten/a.py", PYTHON)) == {
        ("comparison", "if n <= 4:"),
        ("constant", "if n < 5:"),
        ("operator", returned.replace("Add", "Sub")),
        ("axis", returned.replace("axis=1", "axis=2")),
        ("sign", returned.replace("n + 2", "n - 2")),
        ("constant", returned.replace("n + 2", "n + 3")),
    }


def test_places_of_cpp() -> None:
    source = "#if A < 1\nreturn a < 2 ? hn::Add(d, x) : y;  // a < b\n"
    assert broken(source, cpp_mutants("custom_ops/kernels/a-inl.h", source)) == {
        ("comparison", "return a <= 2 ? hn::Add(d, x) : y;  // a < b"),
        ("constant", "return a < 3 ? hn::Add(d, x) : y;  // a < b"),
        ("operator", "return a < 2 ? hn::Sub(d, x) : y;  // a < b"),
    }


def test_a_seed_chooses_different_files_and_kinds() -> None:
    for area in AREAS:
        mutants = choose(area, 3, random.Random(7))
        assert mutants == choose(area, 3, random.Random(7))
        assert len({m.path for m in mutants}) == len({m.kind for m in mutants}) == 3
