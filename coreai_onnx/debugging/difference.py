"""How far an array is from the expected one, and whether it may: by torch's error or a tolerance.

By torch's own error, an element may differ from the result in float64 by the sum of

* 4 times torch's own error in that element, and 8 times the RMS of torch's errors,
* 32 rounding steps of the dtype (4 in float16 and bfloat16), relative to the element and to the RMS
  of the result.

The second term exists because torch may be exact by luck. Integers and booleans are equal to
torch's, except where float64 gives another result, so that torch's own is a matter of rounding.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from coreai_onnx.model.interface import type_text

Array = np.ndarray[Any, np.dtype[Any]]
Tolerance = tuple[float, float]
"""(relative, absolute): ``|actual - expected| <= absolute + relative * |expected|``."""

# 1,204 runs of 39 right models (bodies and kernels, each dtype) have no finding, and each of 1,203
# faults has one (tools/sweep_faults.py, 2026-11).
OWN, OWN_RMS = 4.0, 8.0
STEPS = {"float16": 4.0, "bfloat16": 4.0}
"""Rounding steps that are always allowed, by dtype; 32 for others."""
_STEPS = 32.0
STATEMENT = (
    "allowed: 4 times torch's own error against float64 + 8 times its RMS "
    "+ 32 rounding steps (4 in float16 and bfloat16)"
)


@dataclass(frozen=True)
class Difference:
    """How an array differs from the expected one, and whether it may.

    Attributes:
        mismatched: Number of elements that differ more than allowed, or are not finite in different
            ways.
        size: Number of elements.
        problem: Why the arrays cannot be compared (different dtypes or shapes); empty otherwise.
        max_abs: Largest ``|actual - expected|``.
        max_rel: Largest ``|actual - expected| / |expected|`` where expected is not 0.
        ulps: ``max_abs`` in units in the last place of the largest expected magnitude: the
            approximate number of rounding errors of the dtype. 0 for integers.
        cosine: Cosine of the angle between the arrays.
        sqnr: Ratio of the expected signal to the error in decibels; infinite without an error.
        error: RMS of the errors against float64, relative to the RMS of the float64 result; for
            integers and booleans the share of mismatched elements. NaN if a tolerance decides.
        torch_error: The same for torch.
    """

    mismatched: int
    size: int
    problem: str = ""
    max_abs: float = math.nan
    max_rel: float = math.nan
    ulps: float = math.nan
    cosine: float = math.nan
    sqnr: float = math.nan
    error: float = math.nan
    torch_error: float = math.nan

    @property
    def ok(self) -> bool:
        """Whether dtype and shape are equal and no element is mismatched."""
        return not self.problem and self.mismatched == 0

    @property
    def badness(self) -> tuple[bool, bool, float]:
        """A key by which differences are sorted from the best to the worst."""
        return bool(self.problem), not self.ok, self.max_abs if self.by_tolerance else self.error

    @property
    def by_tolerance(self) -> bool:
        """Whether a tolerance decides, instead of torch's own error."""
        return math.isnan(self.torch_error)

    @property
    def wrong(self) -> int:
        """Deprecated: `mismatched`."""
        warnings.warn("wrong is deprecated: use mismatched", DeprecationWarning, stacklevel=2)
        return self.mismatched

    @property
    def own(self) -> float:
        """Deprecated: `torch_error`."""
        warnings.warn("own is deprecated: use torch_error", DeprecationWarning, stacklevel=2)
        return self.torch_error

    def __str__(self) -> str:
        """Return the numbers that decide in a few words."""
        if self.problem:
            return self.problem
        errors = f"error {self.error:.1e} (torch {self.torch_error:.1e})"
        if self.by_tolerance:
            errors = f"largest error {self.max_abs:.1e}"
        return f"{self.mismatched} of {self.size} wrong, {errors}"


def difference(
    actual: Array, expected: Array, ideal: Array | None = None, tolerance: Tolerance = (0.0, 0.0)
) -> Difference:
    """Compare an array with the expected one.

    NaN equals NaN, and an infinity equals itself. The arithmetic is in float64 (complex128 for
    complex dtypes); unequal integers have an error of at least 1, however large they are.

    Args:
        actual: The computed array.
        expected: The result of torch, or of another reference.
        ideal: The result in float64 (complex128), if torch's own error decides.
        tolerance: (relative, absolute); it decides if there is no ``ideal``.
    """
    size = expected.size
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        types = (type_text(x.dtype.name, x.shape) for x in (actual, expected))
        torch_error = math.nan if ideal is None else 0.0
        return Difference(size, size, "is {}, expected {}".format(*types), torch_error=torch_error)
    if size == 0:
        return Difference(0, 0, "", 0.0, 0.0, 0.0, 1.0, math.inf, 0.0, 0.0)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, e = actual.astype(wide), expected.astype(wide)
    # In the dtype of the arrays: float64 has the same value for different large integers.
    same = (actual == expected) | (np.isnan(a) & np.isnan(e))
    errors = math.nan, math.nan
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.where(same, 0.0, np.abs(a - e))
        if expected.dtype.kind in "iu":
            error = np.where(same, 0.0, np.maximum(error, 1.0))  # float64 has no 2**53 + 1
        if ideal is None:
            relative, absolute = tolerance
            # Relative to an infinite element, any error would be within the tolerance.
            within = (error <= absolute + relative * np.abs(e)) & np.isfinite(e)
        elif is_floating(expected):
            within, errors = _within_torch_error(a, e, ideal.astype(wide), expected.dtype)
        else:
            within = expected != ideal
            errors = float(np.mean(~(same | within))), 0.0
        ratio = np.where(error == 0, 0.0, error / np.abs(e))
        # Not vdot and norm: the threads of a BLAS cost 20 times as much as all other numbers of
        # a small array (24,576 elements, two shared cores, 2026-11).
        noise, signal, power = (np.sum(np.square(np.abs(x))) for x in (error, e, a))
        # NaN if an array has no direction or is not finite.
        cosine = float(np.sum((e.conj() * a).real) / (np.sqrt(power) * np.sqrt(signal)))
        sqnr = math.inf if noise == 0 else float(10 * np.log10(signal / noise))
    max_abs, max_rel = float(np.max(error)), float(np.max(ratio))
    ulps = _ulps(max_abs, e, expected.dtype)
    mismatched = int(np.count_nonzero(~(same | within)))
    return Difference(mismatched, size, "", max_abs, max_rel, ulps, cosine, sqnr, *errors)


def is_floating(array: Array) -> bool:
    """Return whether an array is real or complex, of numpy's dtypes or ``ml_dtypes``."""
    return array.dtype.kind in "fc" or array.dtype.name.startswith(("bfloat", "float"))


def _within_torch_error(
    actual: Array, torch_result: Array, ideal: Array, dtype: np.dtype[Any]
) -> tuple[Array, tuple[float, float]]:
    """Return which elements are within torch's own error, and the errors of both.

    All arrays are float64; ``dtype`` is that of the model and of torch.
    """
    # Complex numbers have the limits of their parts.
    limits = ml_dtypes.finfo(np.empty(0, dtype).real.dtype)
    finite = np.isfinite(ideal) & np.isfinite(torch_result)
    # Elements next to an overflow have errors that would hide all others in the RMS.
    usual = finite & (np.abs(torch_result) < float(limits.max) / 4)
    scale = _rms(ideal[usual])
    errors, torch_errors = np.abs(actual - ideal), np.abs(torch_result - ideal)
    steps = STEPS.get(dtype.name, _STEPS) * float(limits.eps) * (np.abs(ideal) + scale)
    own_rms = _rms(torch_errors[usual])
    within = np.isfinite(actual) & (errors <= OWN * torch_errors + OWN_RMS * own_rms + steps)
    counted = errors[usual & np.isfinite(actual)]
    return within, (_rms(counted) / (scale or 1.0), own_rms / (scale or 1.0))


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(np.abs(values))))) if values.size else 0.0


def _ulps(error: float, expected: Array, dtype: np.dtype[Any]) -> float:
    if dtype.kind in "biu" or error == 0:
        return 0.0
    if not np.isfinite(error):
        return math.nan
    limits = ml_dtypes.finfo(np.empty(0, dtype).real.dtype)
    magnitude = np.max(np.abs(expected), where=np.isfinite(expected), initial=0.0)
    # Below the smallest normal number, floating-point numbers have one constant distance.
    exponent = np.floor(np.log2(max(magnitude, float(limits.smallest_normal))))
    return float(error / (float(limits.eps) * 2.0**exponent))


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

    Returns:
        ``1e-6`` to the number of errors from 1e-6 to 1e-5; ``0`` to that of exact elements, and
        ``not finite`` to that of errors that are not numbers. Powers without errors are left out,
        and arrays of different shapes have none.
    """
    if actual.shape != expected.shape:
        return {}
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.abs(actual.astype(wide) - expected.astype(wide)).reshape(-1)
        same = (actual.reshape(-1) == expected.reshape(-1)) | (error == 0)
        powers = np.floor(np.log10(error[np.isfinite(error) & ~same])).astype(int)
    counts = {UNDEFINED: int(np.count_nonzero(~np.isfinite(error) & ~same))}
    occurring, sizes = np.unique(powers, return_counts=True)
    counts |= {f"1e{p}": int(n) for p, n in zip(occurring[::-1], sizes[::-1], strict=True)}
    counts[EXACT] = int(np.count_nonzero(same))
    return {name: count for name, count in counts.items() if count}


def histogram_rows(counts: Mapping[str, int]) -> list[tuple[object, ...]]:
    """Return rows for a table: name, count, and a bar."""
    largest = max(counts.values(), default=1)
    return [(name, n, "█" * max(1, round(_WIDTH * n / largest))) for name, n in counts.items()]
