"""Whether a result is as good as torch's own: the yardstick is torch's error against float64.

An element may differ from the float64 result by the sum of

* 4 times torch's own error in that element, and 8 times the RMS of torch's errors,
* `FLOOR` rounding steps of the dtype, relative to the element and to the RMS of the result.

The second term exists because torch may be exact by luck. Integers and booleans are equal to
torch's, except where float64 gives another result, so that torch's own is a matter of rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from coreai_onnx.debugging.verdict.difference import Array

OWN, OWN_RMS = 4.0, 8.0
FLOOR = {"float16": 4.0, "bfloat16": 4.0}
"""Rounding steps that are always allowed, by dtype; 32 for others."""
_FLOOR = 32.0
STATEMENT = (
    "allowed: 4 times torch's own error against float64 + 8 times its RMS "
    "+ 32 rounding steps (4 in float16 and bfloat16)"
)


@dataclass(frozen=True)
class Judgment:
    """A result against torch's own.

    Attributes:
        error: RMS of the errors against float64, relative to the RMS of the float64 result; for
            integers and booleans the share of wrong elements.
        own: The same for torch.
        wrong: Number of elements that are wrong.
        size: Number of elements.
        problem: Why the results cannot be compared; empty otherwise.
    """

    error: float
    own: float
    wrong: int
    size: int
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Whether no element is wrong."""
        return not self.problem and self.wrong == 0

    @property
    def badness(self) -> tuple[bool, bool, float]:
        """A key by which judgments are sorted from the best to the worst."""
        return bool(self.problem), not self.ok, self.error

    def __str__(self) -> str:
        """Return the verdict in a few words."""
        if self.problem:
            return self.problem
        return f"{self.wrong} of {self.size} wrong, error {self.error:.1e} (torch {self.own:.1e})"


def judge(actual: Array, torch_result: Array, ideal: Array) -> Judgment:
    """Compare a result with torch's, by torch's own error.

    Args:
        actual: The result of the model.
        torch_result: The result of torch.
        ideal: The result of torch in float64; complex128 for complex results.
    """
    size = torch_result.size
    if actual.dtype != torch_result.dtype or actual.shape != torch_result.shape:
        got, expected = (f"{x.dtype}{list(x.shape)}" for x in (actual, torch_result))
        return Judgment(np.nan, 0.0, size, size, f"is {got}, expected {expected}")
    if size == 0:
        return Judgment(0.0, 0.0, 0, 0)
    if not is_floating(torch_result):
        wrong = int(np.count_nonzero((actual != torch_result) & (torch_result == ideal)))
        return Judgment(wrong / size, 0.0, wrong, size)
    return _judge_floats(actual, torch_result, ideal)


def is_floating(array: Array) -> bool:
    """Return whether an array is real or complex, of numpy's dtypes or ``ml_dtypes``."""
    return array.dtype.kind in "fc" or array.dtype.name.startswith(("bfloat", "float"))


def _judge_floats(actual: Array, torch_result: Array, ideal: Array) -> Judgment:
    wide = np.complex128 if torch_result.dtype.kind == "c" else np.float64
    a, t, i = (x.astype(wide) for x in (actual, torch_result, ideal))
    limits = ml_dtypes.finfo(torch_result.real.dtype)
    # Elements next to an overflow have errors that would hide all others in the RMS.
    step, largest = float(limits.eps), float(limits.max) / 4
    with np.errstate(invalid="ignore", over="ignore"):
        usual = np.isfinite(i) & np.isfinite(t) & (np.abs(t) < largest)
        scale = _rms(i[usual])
        errors, own = np.abs(a - i), np.abs(t - i)
        floor = FLOOR.get(torch_result.dtype.name, _FLOOR) * step
        allowed = OWN * own + OWN_RMS * _rms(own[usual]) + floor * (np.abs(i) + scale)
        fine = (a == t) | (np.isnan(a) & np.isnan(t)) | (np.isfinite(a) & (errors <= allowed))
    wrong = int(np.count_nonzero(~fine))
    counted = usual & np.isfinite(a)
    relative = scale or 1.0
    own_error = _rms(own[usual]) / relative
    return Judgment(_rms(errors[counted]) / relative, own_error, wrong, actual.size)


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(np.abs(values))))) if values.size else 0.0
