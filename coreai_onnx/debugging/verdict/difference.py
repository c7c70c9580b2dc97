"""Differences of arrays: numbers, tolerances by dtype, decades of errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coreai_onnx.model.interface import type_text

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Difference:
    """How an array differs from the expected one.

    Attributes:
        max_abs: Largest ``|actual - expected|``.
        max_rel: Largest ``|actual - expected| / |expected|`` where expected is not 0.
        ulps: ``max_abs`` in units in the last place of the largest expected magnitude: the
            approximate number of rounding errors of the dtype. 0 for integers.
        mismatched: Number of elements that are outside the tolerance, or not finite in different
            ways.
        size: Number of elements.
        problem: Why the arrays cannot be compared (different dtypes or shapes); empty otherwise.
        cosine: Cosine of the angle between the arrays.
        sqnr: Ratio of the expected signal to the error in decibels; infinite without an error.
    """

    max_abs: float
    max_rel: float
    ulps: float
    mismatched: int
    size: int
    problem: str = ""
    cosine: float = float("nan")
    sqnr: float = float("nan")

    @property
    def ok(self) -> bool:
        """Whether dtype and shape are equal and every element is within the tolerance."""
        return not self.problem and self.mismatched == 0


def difference(actual: Array, expected: Array, tolerance: Tolerance) -> Difference:
    """Compare an array with the expected one.

    NaN equals NaN, and an infinity equals itself. The arithmetic is in float64 (complex128 for
    complex dtypes); unequal integers have an error of at least 1, however large they are.

    Args:
        actual: The computed array.
        expected: The reference.
        tolerance: (relative, absolute).
    """
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        got, want = (
            type_text(actual.dtype.name, actual.shape),
            type_text(expected.dtype.name, expected.shape),
        )
        return Difference(
            np.nan, np.nan, np.nan, expected.size, expected.size, f"is {got}, expected {want}"
        )
    if expected.size == 0:
        return Difference(0.0, 0.0, 0.0, 0, 0, cosine=1.0, sqnr=math.inf)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, e = actual.astype(wide), expected.astype(wide)
    # In the dtype of the arrays: float64 has the same value for different large integers.
    same = (actual == expected) | (np.isnan(a) & np.isnan(e))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.where(same, 0.0, np.abs(a - e))
        if expected.dtype.kind in "iu":
            error = np.where(same, 0.0, np.maximum(error, 1.0))  # float64 has no 2**53 + 1
        relative, absolute = tolerance
        # Relative to an infinite element, any error would be within the tolerance.
        within = same | (error <= absolute + relative * np.abs(e)) & np.isfinite(e)
        ratio = np.where(error == 0, 0.0, error / np.abs(e))
    magnitude = np.max(np.abs(e), where=np.isfinite(e), initial=0.0)
    max_abs = float(np.max(error))
    return Difference(
        max_abs=max_abs,
        max_rel=float(np.max(ratio)),
        ulps=_ulps(max_abs, float(magnitude), expected.dtype),
        mismatched=int(np.count_nonzero(~within)),
        size=expected.size,
        cosine=_cosine(a, e),
        sqnr=_sqnr(error, e),
    )


def _cosine(actual: Array, expected: Array) -> float:
    """Return the cosine of the angle; NaN if an array has no direction or is not finite."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        product = np.vdot(expected, actual).real
        return float(product / (np.linalg.norm(actual) * np.linalg.norm(expected)))


def _sqnr(error: Array, expected: Array) -> float:
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        noise, signal = (float(np.sum(np.square(np.abs(x)))) for x in (error, expected))
        return math.inf if noise == 0 else float(10 * np.log10(signal / noise))


def _ulps(error: float, magnitude: float, dtype: np.dtype[Any]) -> float:
    if dtype.kind in "biu" or error == 0:
        return 0.0
    base = {"complex64": "float32", "complex128": "float64"}.get(dtype.name, dtype.name)
    bits = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}.get(base)
    if bits is None or not np.isfinite(error):
        return float("nan")
    # Below the smallest normal number, floating-point numbers have one constant distance.
    smallest = {"float16": 2.0**-14}.get(base, 2.0**-126 if base != "float64" else 2.0**-1022)
    exponent = np.floor(np.log2(max(magnitude, smallest)))
    return float(error / 2.0 ** (exponent - bits))


Tolerance = tuple[float, float]
"""(relative, absolute): ``|actual - expected| <= absolute + relative * |expected|``."""

DEFAULT_TOLERANCES: Mapping[str, Tolerance] = {
    "float64": (1e-7, 1e-7),
    "float32": (1.3e-6, 1e-5),
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "complex32": (1e-3, 1e-5),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}
"""The defaults of ``torch.testing.assert_close``; other dtypes must be equal."""

Tolerances = Tolerance | Mapping[str, Tolerance] | None
"""One tolerance for all outputs, tolerances by output or dtype name, or None for the defaults."""


def tolerance_of(output: str, dtype: str, chosen: Tolerances) -> Tolerance:
    """Return the tolerance of an output: chosen by its name, by its dtype, or the default."""
    if isinstance(chosen, tuple):
        return chosen
    default = DEFAULT_TOLERANCES.get(dtype, (0.0, 0.0))
    chosen = chosen or {}
    return chosen.get(output, chosen.get(dtype, default))


EXACT, UNDEFINED = "0", "not finite"
_WIDTH = 40


def error_decades(actual: Array, expected: Array) -> dict[str, int]:
    """Return how many elements have an error of each power of ten, the largest errors first.

    Args:
        actual: The computed array.
        expected: The reference, of the same shape.

    Returns:
        ``1e-6`` to the number of errors from 1e-6 to 1e-5; ``0`` to that of exact elements, and
        ``not finite`` to that of errors that are not numbers. Powers without errors are left out.
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
