"""Plain-text tables and sizes for the output of this package."""

from __future__ import annotations

from collections.abc import Sequence

from coreai_onnx.printable import printable

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
