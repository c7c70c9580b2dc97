"""Weights as codes, with scales that activations choose."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from coreai_onnx.errors import QuantizationError
from coreai_onnx.model.files.mapped_tensors import on_disk
from coreai_onnx.model.files.saving import Released
from coreai_onnx.model.packed_codes import pack_codes
from coreai_onnx.quantization.weights.gptq import Corrections, corrected_codes
from coreai_onnx.quantization.weights.grids import (
    Grid,
    by_element,
    extreme_grid,
    half_quadratic_grid,
    representable,
)
from coreai_onnx.quantization.weights.palettes import (
    Histogram,
    clusters,
    largest_magnitudes,
    palette_codes,
    refit_scales,
)
from coreai_onnx.quantization.weights.products import MatrixWeight
from coreai_onnx.quantization.weights.scheme import Scheme

CHUNK = 1 << 18
"""Elements that are quantized at a time: a method holds about ten arrays of that size, which fit
into a cache (rtn and hqq took 1.3 and 1.1 times as long with 1 << 21; AVX-512 EPYC, 2026-11)."""
MOST_THREADS = 8
"""Threads that quantize: each holds the arrays of a chunk, and all read from the same disk."""
Array = np.ndarray[Any, np.dtype[Any]]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A weight ``[N, K]`` in the layout of ``linear_nbits``.

    The arrays of experts, in the layout of ``gather_mm_nbits``, have an axis of experts before.

    Attributes:
        scheme: How it was quantized.
        codes: uint8 ``[N, groups, bytes]``.
        scales: ``[N, groups]`` in the scheme's dtype.
        zero_points: uint8 ``[N, groups]``; None if all are the middle.
        palette: float32 ``[2 ** bits]``; None if codes are numbers.
        divisors: float32 ``[K]`` that the inputs are divided by, or None.
        sqnr: Ratio of signal to rounding error in decibels; infinite without an error.
        output_sqnr: That of the product's result on the calibration data; None without data.
    """

    scheme: Scheme
    codes: Array
    scales: Array
    zero_points: Array | None
    palette: Array | None
    divisors: Array | None
    sqnr: float
    output_sqnr: float | None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        divisors = 0 if self.divisors is None else self.divisors.nbytes
        return divisors + sum(part.nbytes for part in self.parts.values())

    @property
    def parts(self) -> dict[str, Array]:
        """The parts of the weight by the names of the inputs of the composites."""
        parts = {
            "codes": self.codes,
            "scales": self.scales,
            "zero_points": self.zero_points,
            "palette": self.palette,
        }
        return {name: part for name, part in parts.items() if part is not None}


def pack_weight(
    weight: MatrixWeight,
    scheme: Scheme,
    moments: Array | None = None,
    workers: int | None = None,
) -> PackedWeight:
    """Quantize a weight.

    Args:
        weight: The weight.
        scheme: Bits, groups and method.
        moments: ``X^T X`` of the inputs, ``[K, K]``, or ``[experts, K, K]``; methods that need
            calibration data use it.
        workers: Threads, which quantize different rows; None means one for each core, up to
            `MOST_THREADS`. The result is the same for any number.

    Raises:
        QuantizationError: The weight has values that are not finite.
    """
    packing = _WeightPacking(weight, scheme, moments)
    return packing.result(workers or min(os.cpu_count() or 1, MOST_THREADS))


class _WeightPacking:
    """The work on one weight."""

    def __init__(self, weight: MatrixWeight, scheme: Scheme, moments: Array | None) -> None:
        self.weight, self.scheme = weight, scheme
        self.outputs, self.inputs = weight.shape[-2:]
        self.moments = None if moments is None else moments.reshape(-1, self.inputs, self.inputs)
        self.group = scheme.group_of(self.inputs)
        self.groups = self.inputs // self.group
        self.matrices = weight.matrix().reshape(-1, self.outputs, self.inputs)
        self.step = max(1, CHUNK // max(1, self.inputs))
        self.divisors = self._divisors()
        self.palette = self._palette() if scheme.method == "palette" else None

    def result(self, workers: int) -> PackedWeight:
        """Quantize all rows in so many threads."""
        rows = math.prod(self.weight.shape[:-1])
        codes = np.empty((rows, self.groups, self.group * self.scheme.bits // 8), np.uint8)
        scales = np.empty((rows, self.groups), self.scheme.scale_dtype)
        zeros = np.empty((rows, self.groups), np.uint8)
        stored = codes, scales, zeros
        signal, noise, read = np.zeros(2), np.zeros(2), Released()
        for matrix in range(rows // self.outputs):
            # The corrections of GPTQ belong to the inputs of one expert.
            quantize = partial(self._quantize, matrix, self._method(matrix), stored)
            # In order, so that the report does not depend on the threads.
            for power, lost in _in_threads(workers, quantize, range(0, self.outputs, self.step)):
                signal += power
                noise += lost
                read.add(self.step * self.inputs * np.dtype(np.float32).itemsize)
        lead = self.weight.shape[:-1]
        return PackedWeight(
            self.scheme,
            on_disk(codes.reshape(*lead, *codes.shape[1:])),
            on_disk(scales.reshape(*lead, self.groups)),
            None if self.scheme.is_symmetric else on_disk(zeros.reshape(*lead, self.groups)),
            self.palette,
            self.divisors,
            decibels(signal[0], noise[0]),
            None if self.moments is None else decibels(signal[1], noise[1]),
        )

    def _quantize(
        self,
        matrix: int,
        method: Callable[[Array], tuple[Array, Grid]],
        stored: tuple[Array, Array, Array],
        start: int,
    ) -> tuple[Array, Array]:
        """Quantize the rows of a matrix from ``start`` on; return powers of signal and noise."""
        part, (codes, scales, zeros) = self._part(matrix, start), stored
        first = matrix * self.outputs + start
        here = slice(first, first + len(part))
        # The inputs are divided by the factors when the model runs, so the weight is multiplied
        # by them.
        original = part if self.divisors is None else part * self._grouped(self.divisors)
        integers, grid = method(original)
        codes[here] = pack_codes(integers.astype(np.uint8), self.scheme.bits)
        scales[here], zeros[here] = grid.scales, grid.zeros
        values = self._values(integers, grid)
        if self.divisors is not None:
            # The report compares weights as the product sees them.
            values /= self._grouped(self.divisors)
        return self._power(part, matrix), self._power(part - values, matrix)

    def _parts(self) -> Iterator[Array]:
        """Yield all rows, float32 ``[rows, groups, size]``."""
        read = Released()
        for matrix in range(math.prod(self.weight.shape[:-2])):
            for start in range(0, self.outputs, self.step):
                yield (part := self._part(matrix, start))
                read.add(part.nbytes)

    def _part(self, matrix: int, start: int) -> Array:
        """Return some rows of a matrix, float32 ``[rows, groups, size]``."""
        rows = self.matrices[matrix, start : start + self.step]
        values = np.ascontiguousarray(rows.astype(np.float32))
        if not np.isfinite(values).all():
            raise QuantizationError(
                f"{self.weight.path}: the weight {self.weight.name!r} has values that are "
                "not finite\n  correct them, or exclude the weight with "
                f'skip=["{self.weight.path}"]'
            )
        return values.reshape(len(values), self.groups, self.group)

    def _method(self, matrix: int) -> Callable[[Array], tuple[Array, Grid]]:
        """Return what quantizes rows of one of the matrices."""
        scheme = self.scheme
        if self.palette is not None:
            return self._with_palette
        if scheme.method == "gptq":
            assert self.moments is not None
            corrections = Corrections(self.moments[matrix])
            return lambda part: corrected_codes(part, scheme, corrections, half_quadratic_grid)
        grid_of = extreme_grid if scheme.method == "rtn" else half_quadratic_grid

        def rounded(part: Array) -> tuple[Array, Grid]:
            part = by_element(part)
            grid = grid_of(part, scheme)
            return grid.codes(part, scheme.levels), grid

        return rounded

    def _divisors(self) -> Array | None:
        # Only AWQ scales columns; the others leave the inputs as they are, without one more Mul.
        if self.scheme.method != "awq":
            return None
        assert self.moments is not None
        rows = np.concatenate(list(self._parts()))
        return scaled_by_activations(rows, self.moments.sum(0), self.scheme)

    def _palette(self) -> Array:
        histogram = Histogram()
        for part in self._parts():
            scales = largest_magnitudes(part)
            units = np.where(scales == 0, np.float32(1), scales)[..., None]
            # An error in units of the scale counts by the square of the scale in the weight.
            histogram.add(part / units, np.broadcast_to(np.square(scales)[..., None], part.shape))
        return clusters(histogram, self.scheme.levels)

    def _with_palette(self, part: Array) -> tuple[Array, Grid]:
        assert self.palette is not None
        scales = representable(largest_magnitudes(part), self.scheme)
        codes = palette_codes(part, scales, self.palette)
        # The largest magnitude is seldom a value of the palette: other scales fit the codes better,
        # and other codes may then be the nearest.
        scales = refit_scales(part, codes, scales, self.palette, self.scheme)
        codes = palette_codes(part, scales, self.palette)
        return codes, Grid(scales, np.zeros_like(scales))

    def _values(self, codes: Array, grid: Grid) -> Array:
        if self.palette is None:
            return grid.values(codes)
        values: Array = self.palette[codes] * grid.scales[..., None]
        return values

    def _grouped(self, columns: Array) -> Array:
        return columns.reshape(self.groups, self.group)

    def _power(self, values: Array, matrix: int) -> Array:
        """Return the sum of squares, and that of the product with the inputs of a matrix."""
        flat = values.ravel(order="K")  # in the order of the memory
        power = float(np.square(flat, dtype=np.float64).sum())
        if self.moments is None:
            return np.array([power, 0.0])
        rows = values.reshape(len(values), -1)
        # For inputs X, |X w|² is w (X^T X) w^T: the inputs themselves are not needed.
        return np.array(
            [power, float(((rows @ self.moments[matrix]) * rows).sum(dtype=np.float64))]
        )


def _in_threads(count: int, work: Callable[[int], T], starts: range) -> Iterator[T]:
    """Yield the results of a function in order; it runs in so many threads.

    numpy computes without Python's lock. Few results wait, however many there are.
    """
    if len(starts) == 1 or count == 1:
        yield from map(work, starts)
        return
    with ThreadPoolExecutor(count) as threads:
        waiting: deque[Future[T]] = deque()
        try:
            for start in starts:
                waiting.append(threads.submit(work, start))
                if len(waiting) > count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:  # after an error or an interrupt
                future.cancel()


def decibels(signal: float, noise: float) -> float:
    """Return ``10 log10(signal / noise)``; infinite without noise, negative without a signal."""
    if noise <= 0:
        return float("inf")
    ratio = signal / noise
    return float(10 * np.log10(ratio)) if ratio > 0 else float("-inf")


POWERS = 11
"""The number of powers from 0 to 1 that are tried."""
ROWS = 256
"""The number of rows that the error is measured on."""


def scaled_by_activations(weight: np.ndarray, moments: np.ndarray, scheme: Scheme) -> np.ndarray:
    """Return the factors of the columns, float32 ``[K]``.

    Args:
        weight: float32 ``[rows, groups, size]``; at most `ROWS` of the rows are looked at.
        moments: ``X^T X`` of the inputs, ``[K, K]``.
        scheme: Bits and symmetry.
    """
    # Rows share the divisors of their columns: a sample in even steps shows the same minimum.
    rows = weight[:: -(-len(weight) // ROWS)]
    size = np.sqrt(np.maximum(np.diagonal(moments), 0)).astype(np.float64)
    # A column whose inputs are zeros would get the divisor 0.
    size = np.maximum(size / max(float(size.max()), 1e-30), 1e-4)
    best, least = np.ones(len(size), np.float32), np.inf
    for power in np.linspace(0, 1, POWERS):
        factors = size**power
        # As in AWQ's own code, the factors are centered on 1: scales in float16 keep their range.
        factors = (factors / np.sqrt(factors.max() * factors.min())).astype(np.float32)
        grouped = factors.reshape(weight.shape[1:])
        scaled = rows * grouped
        rounded = half_quadratic_grid(scaled, scheme).rounded(scaled, scheme.levels)
        error = (rows - rounded / grouped).reshape(len(rows), -1)
        loss = float(((error @ moments) * error).sum(dtype=np.float64))
        if loss < least:
            best, least = factors, loss
    return best
