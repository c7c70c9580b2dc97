"""Text charts of memory over time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from coreai_onnx.messages import size_text

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def chart(values: Sequence[int], *, columns: int = 64, rows: int = 8) -> str:
    """Draw values as bars, from the first to the last; a bar is the maximum of its steps.

    Args:
        values: Bytes by step.
        columns: Maximum number of bars.
        rows: Lines of the tallest bar.
    """
    bars = [max(part) for part in _parts(values, columns)]
    top = max(bars, default=0)
    labels = (size_text(top), "0 B")
    width = max(map(len, labels))
    lines = []
    for row in reversed(range(rows)):
        label = labels[0] if row == rows - 1 else labels[1] if row == 0 else ""
        cells = "".join(_cell(bar * rows / max(top, 1) - row) for bar in bars)
        lines.append(f"{label:>{width}} │{cells}".rstrip())
    return "\n".join(lines)


def _parts(values: Sequence[int], columns: int) -> list[Sequence[int]]:
    count = min(columns, len(values))
    bounds = [len(values) * i // count for i in range(count + 1)] if count else []
    return [values[first:last] for first, last in pairwise(bounds)]


def _cell(height: float) -> str:
    return _EIGHTHS[round(8 * min(max(height, 0.0), 1.0))]
