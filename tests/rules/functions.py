"""Finds the functions of Python and C++ sources and how many lines each has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple


class Function(NamedTuple):
    """A function, its first line, and its length from ``def`` or header to the last line."""

    name: str
    line: int
    length: int


def python_functions(source: str) -> Iterator[Function]:
    """Yield every function of a Python file, nested ones and methods too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            yield Function(node.name, node.lineno, node.end_lineno - node.lineno + 1)


_NOISE = re.compile(
    r"""//[^\n]*                               # line comment
      | /\*.*?\*/                              # block comment
      | R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"     # raw string
      | "(?:\\.|[^"\\\n])*"                    # string
      | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'    # character, not a digit separator
      | ^[ \t]*\#(?:\\\n|[^\n])*               # preprocessor line
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_NO_FUNCTION = re.compile(r"\b(?:namespace|class|struct|union|enum|extern)\b")
_NAME = re.compile(r"(operator\s*[^\s(]+|[~\w:]+)\s*\($")


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def _flat(header: str) -> str:
    """The header with ``@`` for every pair of parentheses and nothing for initializer braces."""
    while True:
        shorter = re.sub(r"\([^()]*\)", "@", re.sub(r"\{[^{}]*\}", "", header))
        if shorter == header:
            return header.strip()
        header = shorter


def _opens_function(header: str) -> bool:
    """Whether the text before a ``{`` at namespace or class scope is a function's header."""
    flat = _flat(re.sub(r"template\s*<[^{}]*?>\s*(?=[\w:])", "", header))
    if "@" not in flat or _NO_FUNCTION.search(flat.split("@")[0]):
        return False
    return "=" not in flat.replace("operator==", "").replace("operator=", "")


def cpp_functions(source: str) -> Iterator[Function]:
    """Yield every function defined at namespace or class scope of a clang-formatted C++ file."""
    code = _NOISE.sub(_blank, source)
    scopes: list[str] = []  # per open brace: function, initializer (member{value}) or scope
    header_start = 0
    first_line, name = 0, ""
    for match in re.finditer(r"[{};]", code):
        at, kind = match.start(), match.group()
        if kind == "{":
            header = code[header_start:at]
            if re.search(r"\w$", header) and "function" not in scopes:
                scopes.append("initializer")  # the format puts a space before a body
                continue
            opens = "function" not in scopes and _opens_function(header)
            scopes.append("function" if opens else "scope")
            if opens:
                lead = len(header) - len(header.lstrip())
                first_line = code.count("\n", 0, header_start + lead) + 1
                name = _header_name(header)
        elif kind == "}" and scopes:
            closed = scopes.pop()
            if closed == "initializer":
                continue
            if closed == "function":
                yield Function(name, first_line, code.count("\n", 0, at) + 2 - first_line)
        if "initializer" not in scopes:
            header_start = at + 1


def _header_name(header: str) -> str:
    found = _NAME.search(header[: header.find("(") + 1])
    return found.group(1) if found else " ".join(header.split())[:40]
