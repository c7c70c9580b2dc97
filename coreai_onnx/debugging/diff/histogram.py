"""Operator counts of one model or of two, with composites counted as operators."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from coreai_onnx.errors import LoadError, failures_as
from coreai_onnx.messages import render
from coreai_onnx.model.inventory import op_histogram
from coreai_onnx.program import OnnxProgram

_WIDTH = 40


def histogram(paths: Sequence[str | PathLike[str]]) -> str:
    """Return a table of operators: with bars for one file, with the difference for two.

    Args:
        paths: One or two files.

    Raises:
        LoadError: If a file is missing or not an ONNX model.
        ValueError: If there are not one or two files.
    """
    if len(paths) not in (1, 2):
        raise ValueError(f"a histogram takes one or two files, not {len(paths)}")
    counts = [_counts(path) for path in paths]
    totals = [sum(count.values()) for count in counts]
    if len(counts) == 1:
        largest = max(counts[0].values(), default=1)
        rows: list[tuple[object, ...]] = [
            (name, n, "█" * max(1, round(_WIDTH * n / largest))) for name, n in counts[0].items()
        ]
        return render(("operator", "count", ""), [*rows, ("all", totals[0], "")])
    first, second = counts
    names = sorted({**first, **second}, key=lambda name: (-first.get(name, 0), name))
    rows = [(name, a := first.get(name, 0), b := second.get(name, 0), b - a) for name in names]
    header = ("operator", *(Path(path).name for path in paths), "difference")
    return render(header, [*rows, ("all", *totals, totals[1] - totals[0])])


def _counts(path: str | PathLike[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    program = OnnxProgram.load(path, data=False)
    with failures_as(LoadError, f"{path}: its operators cannot be counted"):
        for model in program.models.values():
            for name, count in op_histogram(model).items():
                counts[name] = counts.get(name, 0) + count
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
