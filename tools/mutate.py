"""Break the code in one place at a time and report which lane of the tests notices.

    tools/mutate.py --seed 11 --lowerings 4 --passes 3 --kernels 3

The seed chooses files and places, each of another kind: an operator (Add for Sub), a comparison, an
axis, a constant, a sign. A mutant is caught by both lanes if the fast lane catches it: first the
test file that mirrors the source, then the fast lane of the area's folder. Otherwise the area's
whole folder runs. Files are restored, also after an interrupt. Kernels are rebuilt, and their C++
tests run, which both lanes contain.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
if str(REPO) not in sys.path:
    sys.path.insert(0, str(REPO))

from tests.support.fast_lane import test_files  # noqa: E402 - found through the line above

AREAS = {  # where the sources are, and their tests
    "lowering": ("coreai_onnx/lower/aten", "*.py", "tests/lower/aten"),
    "pass": ("coreai_onnx/passes", "*.py", "tests/passes"),
    "kernel": ("custom_ops/kernels", "*-inl.h", "tests/custom_ops"),
}
SWAPS = dict(
    pair
    for a, b in (
        ("Add", "Sub"), ("Mul", "Div"), ("Max", "Min"), ("And", "Or"),
        ("Less", "LessOrEqual"), ("Greater", "GreaterOrEqual"), ("Floor", "Ceil"),
    )
    for pair in ((a, b), (b, a))
)  # fmt: skip
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
NOT_COMPUTED = {
    "decorator_list", "annotation", "returns", "exc", "targets", "defaults", "kw_defaults",
}  # fmt: skip
CPP = {
    "operator": re.compile(r"(?<=hn::)(Add|Sub|Max|Min)(?=\()"),
    "comparison": re.compile(r"(?<= )(<=?|>=?|[=!]=)(?= )"),
    "constant": re.compile(r"(?<![\w.])[0-9](?![\w.])"),
}


@dataclass(frozen=True)
class Mutant:
    """One broken place.

    Attributes:
        area: Key of ``AREAS``.
        kind: What is broken.
        path: The file, relative to the root.
        line: Line of the place, from 1.
        start: Offset of the replaced text in the file.
        old: The replaced text.
        new: What replaces it.
    """

    area: str
    kind: str
    path: str
    line: int
    start: int
    old: str
    new: str


def python_mutants(path: str, source: str) -> Iterator[Mutant]:
    """Yield the places of a Python file; errors, decorators and defaults stay as they are."""
    area = "lowering" if path.startswith("coreai_onnx/lower") else "pass"
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def offset(line: int | None, column: int | None) -> int:
        text = source[starts[(line or 1) - 1] :].encode()[: column or 0]
        return starts[(line or 1) - 1] + len(text.decode())

    def mutant(kind: str, start: int, old: str, new: str) -> Mutant:
        return Mutant(area, kind, path, source.count("\n", 0, start) + 1, start, old, new)

    for node, keyword in _computing(ast.parse(source)):
        begin = offset(node.lineno, node.col_offset)
        end = offset(node.end_lineno, node.end_col_offset)
        if isinstance(node, ast.Attribute) and node.attr in SWAPS:
            yield mutant("operator", end - len(node.attr), node.attr, SWAPS[node.attr])
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            kind = "axis" if keyword in {"axis", "axes", "dim"} else "constant"
            yield mutant(kind, begin, source[begin:end], str(node.value + 1))
        elif isinstance(node, ast.Compare | ast.BinOp):
            left = node.left
            right = node.comparators[0] if isinstance(node, ast.Compare) else node.right
            between = offset(left.end_lineno, left.end_col_offset)
            text = source[between : offset(right.lineno, right.col_offset)]
            swaps, kind = COMPARISONS, "comparison"
            if isinstance(node, ast.BinOp):
                swaps, kind = {"+": "-", "-": "+"}, "sign"
            if text.strip() in swaps:
                sign = text.strip()
                yield mutant(kind, between + text.index(sign), sign, swaps[sign])


def _computing(tree: ast.AST, keyword: str = "") -> Iterator[tuple[ast.expr, str]]:
    """Yield expressions that compute, each with the name of the keyword argument it is.

    Defaults of parameters are no such places: the schema's defaults take their place in a lowering.
    """
    for name, value in ast.iter_fields(tree):
        if name in NOT_COMPUTED:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                inner = child.arg or "" if isinstance(child, ast.keyword) else keyword
                if isinstance(child, ast.expr):
                    yield child, inner
                yield from _computing(child, inner)


def cpp_mutants(path: str, source: str) -> Iterator[Mutant]:
    """Yield the places of a C++ file outside comments, directives and assertions."""
    start = 0
    for number, line in enumerate(source.splitlines(keepends=True), 1):
        code = line.partition("//")[0]
        if not code.lstrip().startswith(("#", "static_assert", "template", "using", "namespace")):
            for kind, pattern in CPP.items():
                for match in pattern.finditer(code):
                    old = match[0]
                    new = SWAPS.get(old) or COMPARISONS.get(old) or str(int(old) + 1)
                    yield Mutant("kernel", kind, path, number, start + match.start(), old, new)
        start += len(line)


def choose(area: str, count: int, chooser: random.Random) -> list[Mutant]:
    """Return mutants of an area: each in another file, their kinds in turn."""
    folder, pattern, _ = AREAS[area]
    files = sorted(str(p.relative_to(REPO)) for p in (REPO / folder).rglob(pattern))
    chooser.shuffle(files)
    places = {path: list(_mutants(path)) for path in files}
    kinds = sorted({mutant.kind for found in places.values() for mutant in found})
    chooser.shuffle(kinds)
    chosen: list[Mutant] = []
    while kinds and len(chosen) < count:
        kind = kinds.pop(0)
        fitting = ([m for m in found if m.kind == kind] for found in places.values())
        if some := next(filter(None, fitting), None):
            chosen.append(chooser.choice(some))
            del places[some[0].path]
            kinds.append(kind)
    return chosen


def _mutants(path: str) -> Iterator[Mutant]:
    source = (REPO / path).read_text(encoding="utf-8")
    return python_mutants(path, source) if path.endswith(".py") else cpp_mutants(path, source)


def verdict(mutant: Mutant) -> str:
    """Break the place, run the tests, restore the file, and return who noticed."""
    file = REPO / mutant.path
    source = file.read_text(encoding="utf-8")
    end = mutant.start + len(mutant.old)
    try:
        file.write_text(source[: mutant.start] + mutant.new + source[end:], encoding="utf-8")
        return _caught_by(mutant)
    finally:
        file.write_text(source, encoding="utf-8")


def _caught_by(mutant: Mutant) -> str:
    if mutant.area == "kernel":
        if _fails("tools/build_kernels", "--tests"):
            return "both lanes: it does not compile"
        if _fails("ctest", "--test-dir", "build/ops"):
            return "both lanes: C++ tests"
    folder = AREAS[mutant.area][2]
    pytest = (sys.executable, "-m", "pytest", "-q", "-x", "-n", "0")
    own = [name for name in test_files([mutant.path]) if (REPO / name).is_file()]
    if own and _fails(*pytest, "--fast", *own):
        return f"both lanes: {own[0]}"
    if _fails(*pytest, "--fast", folder):
        return f"both lanes: {folder}"
    return f"whole suite: {folder}" if _fails(*pytest, folder) else "not noticed"


def _fails(*command: str) -> bool:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, check=False)
    return done.returncode != 0


def main() -> int:
    """Print the table of mutants; return 1 if one was not noticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="only print the places")
    for area in AREAS:
        option = f"--{area}es" if area == "pass" else f"--{area}s"
        parser.add_argument(option, type=int, default=0, dest=area)
    options = parser.parse_args()
    print("| place | kind | mutant | caught by |\n|---|---|---|---|", flush=True)
    missed = 0
    for area in AREAS:
        for mutant in choose(area, getattr(options, area), random.Random(options.seed)):  # noqa: S311
            found = "" if options.list else verdict(mutant)
            missed += found == "not noticed"
            what = f"`{mutant.old}` → `{mutant.new}`"
            place = f"`{mutant.path}:{mutant.line}`"
            print(f"| {place} | {mutant.kind} | {what} | {found} |", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
