"""Errors by their order of magnitude."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from coreai_onnx.debugging.verdict.difference import Array

EXACT, UNDEFINED = "0", "not finite"
_WIDTH = 40


def error_decades(actual: Array, expected: Array) -> dict[str, int]:
    """Return how many elements have an error of each power of ten, the largest errors first.

    Args:
        actual: The computed array.
        expected: The reference, of the same shape.

    Returns:
        ``1e-6`` to the number of errors from 1e-6 to 1e-5; ``0`` to that of exact elements, and
        ``not finite`` to that of errors that are not numbers. Without the powers that no error has.
    """
    if actual.shape != expected.shape:
        return {}
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.abs(actual.astype(wide) - expected.astype(wide)).reshape(-1)
        same = (actual.reshape(-1) == expected.reshape(-1)) | (error == 0)
        powers = np.floor(np.log10(error[np.isfinite(error) & ~same])).astype(int)
    found, counts = np.unique(powers, return_counts=True)
    lost = int(np.count_nonzero(~np.isfinite(error) & ~same))
    made = {UNDEFINED: lost} if lost else {}
    made |= {f"1e{p}": int(n) for p, n in zip(found[::-1], counts[::-1], strict=True)}
    return made | ({EXACT: int(np.count_nonzero(same))} if same.any() else {})


def histogram_rows(decades: Mapping[str, int]) -> list[tuple[object, ...]]:
    """Return rows for a table: power of ten, count, and a bar."""
    largest = max(decades.values(), default=1)
    return [(name, n, "█" * max(1, round(_WIDTH * n / largest))) for name, n in decades.items()]
