"""Escapes and shortens text from files, so that it is safe to print to a terminal.

Names and metadata of a file may hold anything, escape sequences included, and may have any length.
"""

from __future__ import annotations

import re

LINE_LIMIT = 1000
"""Maximum characters of a line, more than any path or source line needs."""
TEXT_LIMIT = 20_000
"""Maximum characters of a message."""

_UNPRINTABLE = re.compile(r"[^ -~]")


def printable(text: str, limit: int = LINE_LIMIT) -> str:
    r"""Return text as one line that is safe to print to a terminal.

    Characters that are not printable (control characters, escape sequences, line ends, marks that
    change the direction of writing, lone surrogates) are escaped: ``"\x1b[2J"`` becomes
    ``"\\x1b[2J"``.

    Args:
        text: Any text.
        limit: Maximum number of characters; the middle of a longer text is left out.
    """
    text = _shortened(text, limit)
    return text if text.isprintable() else _shortened(_UNPRINTABLE.sub(_escaped, text), limit)


def printable_lines(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return text of several lines, with each line made `printable`; tabs are kept.

    Args:
        text: Any text.
        limit: Maximum number of characters; lines in the middle of a longer text are left out.
    """
    lines = _shortened(text, 4 * limit).split("\n")
    lines = ["\t".join(map(printable, line.split("\t"))) for line in lines]
    size = sum(len(line) + 1 for line in lines)
    if size <= limit:
        return "\n".join(lines)
    head, tail = _within(lines, limit // 2), _within(lines[::-1], limit // 4)[::-1]
    left_out = len(lines) - len(head) - len(tail)
    return "\n".join([*head, f"  … {left_out} lines are left out …", *tail])


def _escaped(found: re.Match[str]) -> str:
    character = found.group()
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def _shortened(text: str, limit: int) -> str:
    """Leave out the middle of a long text."""
    if len(text) <= limit:
        return text
    kept = limit // 3
    return f"{text[: limit - kept]} … {len(text) - limit} characters … {text[-kept:]}"


def _within(lines: list[str], limit: int) -> list[str]:
    """Return the leading lines that have at most ``limit`` characters in total."""
    size = 0
    for count, line in enumerate(lines):
        size += len(line) + 1
        if size > limit:
            return lines[:count]
    return lines
