"""Python text in the layout of ``ruff format``: expressions that break where they are too long."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH = 88
"""Longest line; the default of ruff and black."""
INDENT = "    "


@dataclass(frozen=True)
class Bracket:
    """A call, subscript, list or dict: a head, items in brackets.

    Attributes:
        head: Text before the bracket, ``op.MatMul``; empty for a list.
        items: What is inside; an item may be ``axis=0`` or ``"a": 1``.
        brackets: The opening and the closing bracket.
    """

    head: str
    items: tuple[Expression, ...]
    brackets: str = "()"

    @property
    def is_display(self) -> bool:
        """Whether it is a list, tuple or dict: ruff never joins their items on a second line."""
        return not self.head


@dataclass(frozen=True)
class Named:
    """An item with a name: ``axis=0``, ``"a": 1``, ``x: FLOAT[3]``."""

    prefix: str
    value: Expression


Expression = str | Bracket | Named


def flat(expression: Expression) -> str:
    """Return an expression on one line."""
    if isinstance(expression, str):
        return expression
    if isinstance(expression, Named):
        return expression.prefix + flat(expression.value)
    opening, closing = expression.brackets[0], expression.brackets[1]
    return f"{expression.head}{opening}{', '.join(map(flat, expression.items))}{closing}"


def laid_out(prefix: str, expression: Expression, suffix: str = "", depth: int = 0) -> list[str]:
    """Return the lines of a statement: ``prefix`` + expression + ``suffix``, indented.

    Args:
        prefix: ``x = `` or ``return `` or an item's name.
        expression: What follows.
        suffix: ``:`` or ``,``.
        depth: Level of indentation.
    """
    line = INDENT * depth + prefix + flat(expression) + suffix
    if isinstance(expression, Named):
        return laid_out(prefix + expression.prefix, expression.value, suffix, depth)
    if len(line) <= WIDTH or isinstance(expression, str) or not expression.items:
        return [line]
    opening, closing = expression.brackets[0], expression.brackets[1]
    if prefix.endswith(" = ") and len(INDENT * depth + prefix + expression.head) >= WIDTH:
        return _long_targets(prefix, expression, suffix, depth)
    head = INDENT * depth + prefix + expression.head + opening
    joined = INDENT * (depth + 1) + ", ".join(map(flat, expression.items))
    if not expression.is_display and len(joined) <= WIDTH:
        return [head, joined, INDENT * depth + closing + suffix]
    lines = [head]
    # A comma after the only item of a subscript would make it a tuple.
    comma = "" if expression.brackets == "[]" and len(expression.items) == 1 else ","
    for item in expression.items:
        end = "," if expression.is_display else comma
        lines += laid_out("", item, "" if item == "**" else end, depth + 1)
    return [*lines, INDENT * depth + closing + suffix]


def _long_targets(prefix: str, expression: Bracket, suffix: str, depth: int) -> list[str]:
    """Break the value of an assignment in parentheses, or else its targets."""
    inner = laid_out("", expression, depth=depth + 1)
    targets = prefix.removesuffix(" = ").split(", ")
    fits = len(inner) == 1 and len(INDENT * depth + prefix) < WIDTH
    if fits or len(targets) == 1:
        return [INDENT * depth + prefix + "(", *inner, INDENT * depth + ")" + suffix]
    lines = [INDENT * (depth + 1) + target + "," for target in targets]
    return [INDENT * depth + "(", *lines, *laid_out(") = ", expression, suffix, depth)]


def quoted(text: str) -> str:
    """Return a string literal as ruff writes it: double quotes unless others save escapes.

    Whatever the text holds, the result is one literal on one line.
    """
    inner = repr('"' + text)[2:-1]  # in single quotes, whatever it holds
    bare = re.sub(r"\\(.)", lambda m: "'" if m[1] == "'" else m[0], inner)
    quote = "'" if bare.count('"') > bare.count("'") else '"'
    escaped = re.sub(r"\\.|" + quote, lambda m: m[0] if len(m[0]) > 1 else "\\" + quote, bare)
    return quote + escaped + quote


def comment(text: str) -> str:
    """Return a comment; characters that could end the line are escaped."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return f"# {shown.strip()}".rstrip()


def call(head: str, items: Iterable[Expression]) -> Bracket:
    """Return a call."""
    return Bracket(head, tuple(items))


def listed(items: Sequence[Expression]) -> Bracket:
    """Return a list."""
    return Bracket("", tuple(items), "[]")


def keyed(items: Iterable[tuple[str, Expression]]) -> Bracket:
    """Return a dict with string keys."""
    return Bracket("", tuple(Named(f"{quoted(key)}: ", value) for key, value in items), "{}")
