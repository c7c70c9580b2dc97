"""Measures how a quantization changes the outputs of a model, and numbers that users compute."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice, tee

import numpy as np
import onnx_ir as ir

from coreai_onnx.quantization.calibration import Array, Feed, run_calls
from coreai_onnx.quantization.weights.packed_weights import decibels
from coreai_onnx.runtime.sessions.session import Session

FIRST_CALLS = 4
"""The number of calls of the calibration data that the change of the outputs is measured on."""


@dataclass(frozen=True)
class OutputChange:
    """How much an output differs from that of the model before, over all calls.

    Attributes:
        name: Name of the output.
        sqnr: Ratio of the output before to its change in decibels: infinite if nothing changed,
            negative infinity if a value is no longer finite or the shape differs.
        cosine: Cosine between the output before and after, 1 if nothing changed.
        largest: The largest change of a value.
        same_choice: Share of the rows (along the last axis) whose largest value is at the same
            place as before; 1 without rows.
    """

    name: str
    sqnr: float
    cosine: float
    largest: float
    same_choice: float


@dataclass(frozen=True)
class MetricChange:
    """A number that a user's function computes, before and after the quantization.

    Attributes:
        name: Its name.
        before: For the program before the quantization.
        after: For the quantized program.
    """

    name: str
    before: float
    after: float

    @property
    def percent(self) -> float:
        """The change in percent of the number before."""
        change = self.after - self.before
        return 100 * change / abs(self.before) if self.before else float("inf") * change


@dataclass
class _Sums:
    """The sums of one output over the calls."""

    signal: float = 0.0
    after: float = 0.0
    product: float = 0.0
    noise: float = 0.0
    largest: float = 0.0
    rows: int = 0
    same: int = 0

    def add(self, before: Array, after: Array) -> None:
        """Add the output of a call."""
        # The shape of NonZero and the like depends on the values: there is nothing to compare.
        if before.shape != after.shape:
            self.noise = self.largest = float("inf")
            return
        first, second = _flat(before), _flat(after)
        # Masked scores are infinite in both models; a sum with them would be infinite or NaN.
        finite = np.isfinite(first) & np.isfinite(second)
        if not np.array_equal(first[~finite], second[~finite], equal_nan=True):
            self.noise = self.largest = float("inf")
        choices = [_choices(array) for array in (before, after)]
        self.rows += len(choices[0])
        self.same += int((choices[0] == choices[1]).sum())
        first, second = first[finite], second[finite]
        self.signal += float(first @ first)
        self.after += float(second @ second)
        self.product += float(first @ second)
        change = second - first
        self.noise += float(change @ change)
        self.largest = max(self.largest, float(np.abs(change).max(initial=0)))

    def result(self, name: str) -> OutputChange:
        """Return the change over all calls."""
        # An output of zeros has no direction: it is alike only if the other one is zeros as well.
        length = np.sqrt(self.signal * self.after)
        cosine = self.product / length if length else float(self.signal == self.after)
        same = self.same / self.rows if self.rows else 1.0
        return OutputChange(
            name, decibels(self.signal, self.noise), float(cosine), self.largest, same
        )


def output_changes(
    before: ir.Model, after: ir.Model, feeds: Iterable[Feed], *, what: str = "evaluation"
) -> tuple[OutputChange, ...]:
    """Return the change of each output, over all calls.

    Both models make the same calls in turn, so that the outputs of one call are in memory.

    Args:
        before: The model before its quantization.
        after: The quantized model.
        feeds: The inputs of each call, which are consecutive: each model carries its own states on.
        what: What errors call the data.

    Raises:
        QuantizationError: There is no data, or it does not fit the model.
    """
    totals, sessions = dict[str, _Sums](), [Session(model) for model in (before, after)]
    names = [info.name for info in sessions[0].outputs]
    # Both copies of `tee` advance in step, so that it holds one call only.
    calls = (
        run_calls(session, copy, what=what)
        for session, copy in zip(sessions, tee(feeds), strict=True)
    )
    for (_, first), (_, second) in zip(*calls, strict=True):
        for name in names:
            # Texts and other objects are not compared: these are their kinds in NumPy.
            if first[name].dtype.kind not in "OSU":
                totals.setdefault(name, _Sums()).add(first[name], second[name])
    return tuple(sums.result(name) for name, sums in totals.items())


def beginning(feeds: Iterable[Feed]) -> tuple[list[Feed], Iterable[Feed]]:
    """Return the first calls of calibration data, and an iterable of all of its calls."""
    rest = iter(feeds)
    first = list(islice(rest, FIRST_CALLS))
    return first, chain(first, rest)


def _flat(array: Array) -> Array:
    """Return the values in float64; complex ones as pairs."""
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], -1)
    return array.reshape(-1).astype(np.float64)


def _choices(array: Array) -> Array:
    """Return the index of the largest value in each row, or of the largest magnitude if complex."""
    # argmax raises an error for an axis without elements.
    if not array.size:
        return np.zeros(0, np.intp)
    values = np.abs(array) if array.dtype.kind == "c" else array
    # A scalar counts as a row of one value.
    places: Array = np.atleast_1d(values).astype(np.float64).argmax(-1)
    return places.reshape(-1)
