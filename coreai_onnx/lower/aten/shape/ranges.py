"""Ranges, identity matrices, triangular parts, and windows of signals."""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch

from coreai_onnx.lower.aten.shape.creation import Scalar
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.promotion import as_value
from coreai_onnx.lower.nodes.tensors import LARGEST_CONSTANT, positions
from coreai_onnx.lower.nodes.values import Dim, Number, Value, scalar_dtype, set_dims
from coreai_onnx.lower.walk.registry import lowers


# ---------------------------------------------------------------------- ranges
@lowers("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def arange(
    op: OpBuilder,
    end: Scalar,
    start: Scalar = 0,
    step: Scalar = 1,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    """start + i * step before end, computed in float64 as in torch unless all are integers."""
    numbers = (start, end, step)
    floating = any(scalar_dtype(x).is_floating_point for x in numbers)
    target = dtype or (torch.get_default_dtype() if floating else torch.int64)
    if not any(isinstance(x, sympy.Basic) for x in numbers):
        stored: torch.Tensor = torch.arange(start, end, step, dtype=target)
        if floating or stored.numel() <= LARGEST_CONSTANT:
            return op.const(stored)
    if not floating:
        if start == 0 and step == 1:
            return op.cast(positions(op, end), target)
        parts = [as_value(op, x, torch.int64) for x in numbers]
        return op.cast(op.Range(*parts), target)
    first, last, pace = (as_value(op, x, torch.float64) for x in numbers)
    if not target.is_floating_point:  # torch truncates the start and the step, not the length
        return _truncated_range(op, first, last, pace, target)
    return op.cast(op.Range(first, last, pace), target)


@lowers("aten.range.default", "aten.range.step")
def range_(
    op: OpBuilder, start: Number, end: Number, step: Number = 1, *, dtype: torch.dtype | None = None
) -> Value:
    """start, start + step, … up to end, which is included."""
    count = int((end - start) / step) + 1
    target = dtype or torch.get_default_dtype()
    return op.const((start + torch.arange(count, dtype=torch.float64) * step).to(target))


def _truncated_range(
    op: OpBuilder, start: Value, end: Value, step: Value, target: torch.dtype
) -> Value:
    count = op.cast(op.Ceil(op.Div(op.Sub(end, start), step)), torch.int64)
    steps = op.Mul(op.Range(op.const(0), count, op.const(1)), op.cast(step, torch.int64))
    return op.cast(op.Add(op.cast(start, torch.int64), steps), target)


@lowers("prims.iota.default")
def iota(op: OpBuilder, length: Dim, *, start: Dim, step: Dim, dtype: torch.dtype) -> Value:
    """start + i * step for length values of i."""
    steps = positions(op, length)
    if step != 1:
        steps = op.Mul(steps, step)
    return op.cast(op.Add(steps, start) if start != 0 else steps, dtype)


@lowers("aten.linspace.default", "aten.logspace.default")
def spaced(
    op: OpBuilder,
    start: Scalar,
    end: Scalar,
    steps: int,
    base: float | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    """``steps`` evenly spaced numbers from start to end, or ``base`` to the power of them."""
    if any(isinstance(x, sympy.Basic) for x in (start, end)):
        return _spaced_by_dims(op, start, end, steps, base, dtype or torch.get_default_dtype())
    if base is None:
        return op.const(torch.linspace(start, end, steps, dtype=dtype))
    return op.const(torch.logspace(start, end, steps, base, dtype=dtype))


def _spaced_by_dims(
    op: OpBuilder, start: Scalar, end: Scalar, steps: int, base: float | None, dtype: torch.dtype
) -> Value:
    """Return the numbers of `spaced` where the start or the end is a dim.

    As in torch, the second half is counted from the end, so that the end is exact, the bounds are
    in the dtype, and a floating dtype rounds every step of the computation.
    """
    wide = torch.float64

    def rounded(x: Value) -> Value:
        return op.cast(op.cast(x, dtype), wide) if dtype.is_floating_point else x

    first, last = (op.cast(as_value(op, x, dtype), wide) for x in (start, end))
    index = torch.arange(steps, dtype=wide)
    gaps = op.const(max(steps - 1, 1), wide)
    pace = rounded(op.Div(rounded(op.Sub(last, first)), gaps))
    ahead = op.Add(first, rounded(op.Mul(op.const(index), pace)))
    behind = op.Sub(last, rounded(op.Mul(op.const(steps - 1 - index), pace)))
    half = max(steps // 2, 1)  # a single number is the start
    numbers = op.Where(op.const(index < half), ahead, behind)
    if base is not None:
        numbers = op.Pow(op.const(base, wide), numbers)
    return op.cast(numbers, dtype)


# ---------------------------------------------------------------------- matrices
@lowers("aten.eye.default", "aten.eye.m")
def eye(op: OpBuilder, n: Dim, m: Dim | None = None, *, dtype: torch.dtype | None = None) -> Value:
    """An n × m matrix with ones on its main diagonal."""
    m = n if m is None else m
    target = dtype or torch.get_default_dtype()
    if isinstance(n, int) and isinstance(m, int) and n * m <= LARGEST_CONSTANT:
        return op.const(torch.eye(n, m, dtype=target))
    rows = op.unsqueeze(positions(op, n), [1])
    return set_dims(op.cast(op.Equal(rows, positions(op, m)), target), (n, m))


@lowers("aten.tril.default", upper=0)
@lowers("aten.triu.default", upper=1)
def triangle(op: OpBuilder, self: Value, diagonal: Dim = 0, *, upper: int) -> Value:
    """self with zeros above or below a diagonal."""
    return op.Trilu(self, None if diagonal == 0 else op.dim(diagonal), upper=upper)


@lowers("aten.tril_indices.default", indices=torch.tril_indices)
@lowers("aten.triu_indices.default", indices=torch.triu_indices)
def triangle_indices(
    op: OpBuilder,
    row: int,
    col: int,
    offset: int = 0,
    *,
    indices: Callable[..., torch.Tensor],
    dtype: torch.dtype | None = torch.int64,
) -> Value:
    """Row and column indices of the lower or upper triangle."""
    return op.const(indices(row, col, offset, dtype=dtype or torch.int64))


# ---------------------------------------------------------------------- windows of signals
def window(
    op: OpBuilder,
    window_length: int,
    *,
    periodic: bool = True,
    alpha: float | None = None,
    beta: float | None = None,
    dtype: torch.dtype | None = None,
    function: Callable[..., torch.Tensor],
) -> Value:
    """The samples of a window function; an overload has some of its parameters."""
    parameters = [x for x in (alpha, beta) if x is not None]
    return op.const(function(window_length, periodic, *parameters, dtype=dtype))


for _name, _overloads in {
    "bartlett_window": (),
    "blackman_window": (),
    "hamming_window": ("periodic_alpha", "periodic_alpha_beta"),
    "hann_window": (),
    "kaiser_window": ("beta",),
}.items():
    _names = [f"aten.{_name}.{overload}" for overload in ("default", "periodic", *_overloads)]
    lowers(*_names, function=getattr(torch, _name))(window)
