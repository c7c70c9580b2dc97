"""What is printed: escaped text, tables, stages of a conversion, no warnings of other packages."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# ---------------------------------------------------------------------- text that is safe to print
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


def _escaped(match: re.Match[str]) -> str:
    character = match.group()
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


# -------------------------------------------------------------------------------- tables and sizes
CELL_LIMIT = 200
"""Maximum characters of a cell: names in files may have any length."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def render(header: Sequence[str], rows: Sequence[Sequence[object]], *, indent: str = "") -> str:
    """Lay out rows under a header; columns whose cells are all numbers are right-aligned.

    Args:
        header: Column titles.
        rows: Cells, one sequence per row, as long as the header. Characters that are not printable
            are escaped.
        indent: Text put before every line.

    Returns:
        The table without a newline at its end. Without rows, the header alone.
    """
    texts = [[printable(str(cell), CELL_LIMIT) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(header), *texts]) for i in range(len(header))]
    right = [
        bool(rows) and all(isinstance(row[i], int | float) for row in rows)
        for i in range(len(header))
    ]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if flush else cell.ljust(width)
            for cell, width, flush in zip(cells, widths, right, strict=True)
        )
        return (indent + "  ".join(padded)).rstrip()

    rule = ["-" * width for width in widths]
    return "\n".join([line(header), line(rule), *(line(row) for row in texts)])


def size_text(count: int) -> str:
    """Return a number of bytes in binary units: ``size_text(1536) == "1.5 KiB"``."""
    value = float(count)
    unit = 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{count} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


# ------------------------------------------------------------------------------------------ stages
Listener = Callable[[str], None]
"""Called with the name of each stage as it begins."""

_listener: ContextVar[Listener | None] = ContextVar("stage_listener", default=None)


def begin_stage(stage: str) -> None:
    """Notify the listener of this thread, if there is one, that a stage begins."""
    listener = _listener.get()
    if listener is not None:
        listener(stage)


@contextmanager
def reported_to(listener: Listener) -> Iterator[None]:
    """While active, call a listener for the stages that begin in this thread."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def progress_bar(
    description: str, items: Iterable[Any] | None = None, *, total: int | None = None
) -> Any:
    """Return a bar of tqdm, which is shown on a terminal, after a second.

    Args:
        description: The text before the bar.
        items: What to iterate over; None for a bar that `update` moves.
        total: The number of steps of such a bar.
    """
    from tqdm import tqdm  # only here: commands that show no bar start without it

    return tqdm(
        iterable=items,
        total=total,
        desc=description,
        disable=None,
        delay=1.0,  # no bar for what is over before it could be read
        leave=False,
    )


# ---------------------------------------------------------------------- warnings of other packages
@contextmanager
def without_warnings(*loggers: str) -> Iterator[None]:
    """Keep loggers from logging warnings.

    Args:
        *loggers: Their names; by default that of onnx_ir's reader and writer, whose warnings print
            names unescaped, and this package checks the same.
    """
    chosen = [logging.getLogger(name) for name in loggers or ("onnx_ir.serde",)]

    def drop(record: logging.LogRecord) -> bool:
        return record.levelno > logging.WARNING

    for logger in chosen:
        logger.addFilter(drop)
    try:
        yield
    finally:
        for logger in chosen:
            logger.removeFilter(drop)
