"""One result of a model against that of a reference: the numbers, and whether they are allowed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np

from coreai_onnx.debugging.difference import (
    STATEMENT,
    Array,
    Difference,
    Tolerances,
    difference,
    error_decades,
    is_floating,
    tolerance_of,
)
from coreai_onnx.debugging.reference.watched_values import ValuePair

NUMBERS = ("max abs", "max rel", "ulps", "cosine", "SQNR dB", "error", "torch's")
"""Titles of the columns of `cells`, without the last, which says what differs."""
_ALL_NAN = "every element is NaN"


@dataclass(frozen=True)
class Row:
    """One output of one call in one execution, against the reference.

    Attributes:
        call: Index of the input set.
        output: Output name; the name of a state has the prefix ``state``.
        execution: ``"bodies"``, ``"kernels"``, or another runtime, ``"onnxruntime 1.24.1"``.
        dtype: The dtype of the reference.
        shape: The shape of the reference.
        difference: The difference from the reference.
        note: What is unusual about the reference's result.
        decades: Number of errors of each power of ten.
        module: Path of the module that computes a value; empty for outputs and states.
        module_class: Class of that module.
        step: The iteration of the loop that computes a value; None outside of loops.
    """

    call: int
    output: str
    execution: str
    dtype: str
    shape: tuple[int, ...]
    difference: Difference
    note: str = ""
    decades: Mapping[str, int] = field(default_factory=dict)
    module: str = ""
    module_class: str = ""
    step: int | None = None

    @property
    def ok(self) -> bool:
        """Whether dtype and shape are equal, and every element is within what is allowed."""
        # NaN equals NaN here, so that a model that computes nothing else would always be right.
        if self.note.startswith(_ALL_NAN):
            return False
        return self.difference.ok

    @property
    def mismatched(self) -> int:
        """Number of elements that differ more than allowed."""
        return self.difference.mismatched

    @property
    def judgment(self) -> Difference | None:
        """Deprecated: `difference`; None if a tolerance decides."""
        warnings.warn("judgment is deprecated: use difference", DeprecationWarning, stacklevel=2)
        return None if self.difference.by_tolerance else self.difference


def compared_row(
    place: tuple[int, str, str],
    dtype: str,
    arrays: tuple[Array, Array, Array | None],
    tolerances: Tolerances = None,
) -> Row:
    """Return the row of a result.

    Args:
        place: Call, output and execution.
        dtype: torch's dtype.
        arrays: The result, that of the reference, and that in float64 or None.
        tolerances: The user's tolerances; None for torch's own error, if there is a float64 result.
    """
    actual, expected, ideal = arrays
    tolerance = tolerance_of(place[1], dtype, tolerances)
    compared = difference(actual, expected, ideal if tolerances is None else None, tolerance)
    decades = error_decades(actual, expected)
    return Row(*place, dtype, expected.shape, compared, _note(expected), decades)


def value_row(pair: ValuePair, tolerances: Tolerances) -> Row:
    """Return the row of a value inside of the graph."""
    arrays = pair.actual, pair.expected, pair.ideal
    place = pair.call, pair.name, pair.execution
    row = compared_row(place, pair.expected.dtype.name, arrays, tolerances)
    return replace(row, module=pair.module, module_class=pair.module_class, step=pair.step)


def allowed_errors(rows: Sequence[Row], tolerances: Tolerances) -> str:
    """Return the allowed errors in words."""
    if any(not row.difference.by_tolerance for row in rows):
        return STATEMENT.removeprefix("allowed: ")
    if tolerances is not None:
        return f"the given tolerances, {tolerances}"
    return "the tolerances of torch.testing.assert_close for each dtype"


def _note(expected: Array) -> str:
    """Return what is unusual about a result of the reference."""
    if not is_floating(expected) or not expected.size:
        return ""
    parts = expected.real, expected.imag
    undefined = np.isnan(parts[0]) | np.isnan(parts[1])
    if undefined.all():
        return f"{_ALL_NAN}, in the reference too"
    # numpy's own finfo does not know bfloat16.
    limit = ml_dtypes.finfo(parts[0].dtype).max
    saturated = (np.abs(parts[0]) >= limit) | (np.abs(parts[1]) >= limit)
    counts = {"NaN": undefined.sum(), "infinite or the largest number": saturated.sum()}
    return ", ".join(f"{count} {what} in the reference" for what, count in counts.items() if count)


def shape_text(row: Row) -> str:
    """Return ``[2, 3]``."""
    return f"[{', '.join(map(str, row.shape))}]"


def value_text(row: Row) -> str:
    """Return ``mul``, or ``mul[2]`` in the third iteration of a loop."""
    return row.output if row.step is None else f"{row.output}[{row.step}]"


def cells(row: Row) -> Sequence[object]:
    """Return the numbers of a row, as many as `NUMBERS`, and what differs."""
    diff = row.difference
    if diff.problem:
        return *("-" for _ in NUMBERS), diff.problem
    result = "ok" if row.ok else f"{row.mismatched} of {diff.size} differ"
    numbers = [f"{diff.max_abs:.2e}", f"{diff.max_rel:.2e}", f"{diff.ulps:.1f}"]
    numbers += [f"{diff.cosine:.6f}", f"{diff.sqnr:.1f}"]
    numbers += ["-" if np.isnan(x) else f"{x:.1e}" for x in (diff.error, diff.torch_error)]
    return *numbers, "; ".join(filter(None, (result, row.note)))


def badness(row: Row) -> tuple[bool, float]:
    """Return a key that is larger for a row with a larger error, relative to torch's own."""
    diff = row.difference
    # torch is exact in some results.
    error = diff.max_abs if diff.by_tolerance else diff.error / (diff.torch_error or 1e-30)
    return not row.ok, error
