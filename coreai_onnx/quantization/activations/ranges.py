"""The ranges of values in a model on calibration data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import onnx_ir as ir

from coreai_onnx.errors import QuantizationError
from coreai_onnx.quantization.calibration import Array, Feed, finite_floats, run_calls
from coreai_onnx.runtime.sessions.session import Session

Range = tuple[float, float]
"""The smallest and the largest value."""
CalibrationMethod = Literal["minmax", "percentile", "entropy"]
CALIBRATION_METHODS: tuple[CalibrationMethod, ...] = get_args(CalibrationMethod)
PERCENTILE = 99.99
_BUCKETS = 1 << 16
_LIMITS = 128
"""The number of limits that are tried; neighbors differ by 10 % from the largest value down."""
_LEAST_SHARE = 0.95
"""The least share of the values inside of a limit: with fewer, the few buckets that are left are
alike whatever the rounding does to them."""


_LARGE, _FINE = 0.99, 2048
"""No bucket of a divergence is narrower than a 2048th of the size that 99 % of the values have:
buckets of single values would differ from their neighbors by chance."""


@dataclass(frozen=True)
class Clipping:
    """Which values a range leaves out and rounds to its ends.

    Attributes:
        method: ``"minmax"``: none; ``"percentile"``: the smallest and the largest ones;
            ``"entropy"``: those beyond the limit with which the distribution of the rounded values
            differs least from that of the values, by Kullback-Leibler divergence.
        percentile: The share of the values, in percent, below the upper end and above the lower
            end.

    Raises:
        QuantizationError: A value is out of range.
    """

    method: CalibrationMethod = "minmax"
    percentile: float = PERCENTILE

    def __post_init__(self) -> None:
        """Check the values."""
        if self.method not in CALIBRATION_METHODS:
            methods = ", ".join(CALIBRATION_METHODS)
            raise QuantizationError(f"calibration_method={self.method!r}; choose from {methods}")
        share = self.percentile
        if isinstance(share, bool) or not isinstance(share, int | float) or not 50 < share <= 100:
            raise QuantizationError(f"percentile={share!r}; give a number above 50, at most 100")


MINMAX = Clipping()


@dataclass
class ValueHistogram:
    """The distribution of values, in buckets of one bfloat16 each.

    Buckets are exact to 0.8 %, whatever the range of later values, and an outlier makes the others
    no coarser.

    Attributes:
        counts: The number of values in each bucket, by the upper 16 bits of their float32.
        low: The smallest value.
        high: The largest value.
    """

    counts: Array = field(default_factory=lambda: np.zeros(_BUCKETS, np.int64))
    low: float = np.inf
    high: float = -np.inf

    def add(self, values: Array) -> None:
        """Add float32 values, all of them finite."""
        if values.size:
            self.low = min(self.low, float(values.min()))
            self.high = max(self.high, float(values.max()))
            # The upper half of a float32 is a bfloat16: sign, exponent and 7 bits of the fraction.
            buckets = np.ascontiguousarray(values).view(np.uint32).reshape(-1) >> 16
            self.counts += np.bincount(buckets, minlength=_BUCKETS)

    def range(self, clipping: Clipping, levels: int) -> Range:
        """Return the range of the values that are not clipped.

        Args:
            clipping: Which values are.
            levels: The number of values that a rounded value can have.
        """
        # A single value has no tails to clip, and no width to divide by.
        if clipping.method == "minmax" or self.low == self.high:
            return self.low, self.high
        if clipping.method == "percentile":
            return self._percentiles(clipping.percentile / 100)
        return self._least_divergence(levels)

    def _sorted(self) -> tuple[Array, Array, Array]:
        """Return the ends and the counts of the buckets that are not empty, in ascending order."""
        used = np.flatnonzero(self.counts).astype(np.uint32)
        near = (used << 16).view(np.float32)
        far = ((used << 16) | 0xFFFF).view(np.float32)  # away from zero
        far = np.where(np.isfinite(far), far, near)
        lower, upper = np.minimum(near, far), np.maximum(near, far)
        # The bit patterns of negative numbers rise as the numbers fall.
        order = np.argsort(lower, kind="stable")
        return lower[order], upper[order], self.counts[used][order]

    def _percentiles(self, share: float) -> Range:
        lower, upper, counts = self._sorted()
        below = np.cumsum(counts) / counts.sum()
        low = lower[np.searchsorted(below, 1 - share, side="right")]
        high = upper[min(int(np.searchsorted(below, share)), len(upper) - 1)]
        # A bucket reaches beyond the values in it.
        return max(self.low, float(low)), min(self.high, float(high))

    def _least_divergence(self, levels: int) -> Range:
        """Return the range with the least divergence.

        As in NVIDIA's 8-bit Inference with TensorRT (GTC 2017), but with buckets that do not grow
        with the range.
        """
        lower, upper, counts = self._sorted()
        nonzero = (lower > 0) | (upper < 0)  # padding and Relu say nothing about the range
        if not nonzero.any():
            return self.low, self.high
        middle, width, counts = _merged(lower[nonzero], upper[nonzero], counts[nonzero])
        largest = max(-self.low, self.high)
        best, least = (self.low, self.high), np.inf
        for limit in largest * 0.9 ** np.arange(_LIMITS):
            low, high = max(self.low, -limit), min(self.high, limit)
            inside = (middle >= low) & (middle <= high)
            if counts[inside].sum() < _LEAST_SHARE * counts.sum():
                # Later limits are smaller, and leave out more values still.
                break
            ends = middle[inside][0] - width[inside][0], middle[inside][-1] + width[inside][-1]
            ends = float(max(low, ends[0])), float(min(high, ends[1]))  # an outlier on one side
            divergence = _divergence(middle, width, counts, inside, ends, levels)
            if divergence < least:
                best, least = ends, divergence
        return best


def _merged(lower: Array, upper: Array, counts: Array) -> tuple[Array, Array, Array]:
    """Return middles, widths and counts, with the small buckets next to zero merged."""
    middle = (lower.astype(np.float64) + upper) / 2
    order = np.argsort(np.abs(middle))
    below = np.cumsum(counts[order]) / counts.sum()
    large = np.abs(middle[order[np.searchsorted(below, _LARGE)]])
    least = large / _FINE
    _, first, place = np.unique(np.rint(middle / least), return_index=True, return_inverse=True)
    merged = np.bincount(place, counts)
    return middle[first], np.maximum((upper - lower)[first], least), merged


def _divergence(
    middle: Array, width: Array, counts: Array, inside: Array, ends: Range, levels: int
) -> float:
    """Return the divergence between values that are clipped, and their spread over their levels."""
    # QuantizeLinear gets a grid with an exact 0, so the divergence is measured on the same grid.
    low, high = min(ends[0], 0.0), max(ends[1], 0.0)
    steps = np.rint((middle[inside] - low) * ((levels - 1) / (high - low))).astype(np.int64)
    kept, sizes = counts[inside].astype(np.float64), width[inside].astype(np.float64)
    per_level = np.bincount(steps, kept, minlength=levels)
    # The values of a level are spread by width, because buckets of bfloat16 grow with magnitude;
    # NVIDIA's have one width, and are spread by count.
    size = np.bincount(steps, sizes, minlength=levels)
    spread = per_level[steps] * sizes / size[steps]
    # Clipped values count for the original distribution only, as in NVIDIA's method: this is what
    # makes a small limit costly.
    clipped = kept.copy()
    clipped[0] += counts[middle < ends[0]].sum()
    clipped[-1] += counts[middle > ends[1]].sum()
    share, other = clipped / clipped.sum(), spread / spread.sum()
    return float((share * np.log(share / other)).sum())


def value_ranges(
    model: ir.Model,
    names: Iterable[str],
    feeds: Iterable[Feed],
    *,
    clipping: Clipping = MINMAX,
    levels: int = 256,
) -> dict[str, Range]:
    """Return the range of values of the main graph, over all calls.

    Args:
        model: The model.
        names: Names of values of the main graph, also of its inputs.
        feeds: The inputs of each call, which are consecutive: states are carried on.
        clipping: Which values are outside of a range.
        levels: The number of values that a rounded value can have.

    Returns:
        Name to range.

    Raises:
        QuantizationError: There is no data, it does not fit the model, or a value is not finite, or
            empty in all calls.
    """
    probed, selected = model.clone(), dict.fromkeys(names)
    graph = probed.graph
    # Inputs of the graph need no probe: `run_calls` yields them as well.
    for node in graph:
        for value in node.outputs:
            if value.name in selected and value not in graph.outputs:
                graph.outputs.append(value)
    session = Session(probed)
    histograms = {name: ValueHistogram() for name in selected}
    for count, arrays in run_calls(session, feeds):
        for name, histogram in histograms.items():
            histogram.add(finite_floats(arrays[name], f"the value {name!r}", count))
    for name, histogram in histograms.items():
        if histogram.low > histogram.high:
            raise QuantizationError(
                f"the value {name!r} is empty in all calls of the calibration data\n"
                "  give data with rows, or leave out the layer that reads it with skip=[…]"
            )
    return {name: histogram.range(clipping, levels) for name, histogram in histograms.items()}
